import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { AGAIN, TokenEvents } from "./token_events.ts";

let asked: { address: string; headers: Record<string, string> }[] = [];
let answers: (() => Response)[] = [];
let told: [string, unknown][] = [];
let opened = 0;
let states: number[] = [];

/** A stream of these pieces, which then ends. */
function streamed(...pieces: string[]): Response {
  const source = pieces.map((piece) => new TextEncoder().encode(piece));
  return new Response(new ReadableStream({ start: (sink) => (source.forEach((one) => sink.enqueue(one)), sink.close()) }));
}

function listening(): TokenEvents {
  const events = new TokenEvents("/events?after=2", "secret");
  events.onopen = () => (opened += 1);
  events.onerror = () => states.push(events.readyState);
  for (const kind of ["live", "round"])
    events.addEventListener(kind, (event) => told.push([kind, JSON.parse((event as MessageEvent<string>).data)]));
  return events;
}

beforeEach(() => {
  vi.useFakeTimers();
  [asked, answers, told, opened, states] = [[], [], [], 0, []];
  vi.stubGlobal("fetch", async (address: string, { headers }: { headers: Record<string, string> }) => {
    asked.push({ address, headers });
    const answer = answers.shift();
    if (answer === undefined) throw new TypeError("no network");
    return answer();
  });
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("events come whole from pieces that are not, and the token stands in a header alone", async () => {
  answers = [() => streamed('id: 1\nevent: round\nda', 'ta: {"round": 3}\n\nid: 2\nevent: live\ndata: {"a": ": b"}\n', "\n")];
  const events = listening();
  await vi.advanceTimersByTimeAsync(0);
  expect(told).toEqual([["round", { round: 3 }], ["live", { a: ": b" }]]);
  expect(asked[0]).toMatchObject({ address: "/events?after=2", headers: { Authorization: "Bearer secret" } });
  expect([opened, states]).toEqual([1, [0]]);
  events.close();
});

test("a stream that broke off is asked for again, and one that was closed is not", async () => {
  const events = listening();
  await vi.advanceTimersByTimeAsync(0);
  expect([asked.length, states]).toEqual([1, [0]]);
  answers = [() => streamed()];
  await vi.advanceTimersByTimeAsync(AGAIN);
  expect([asked.length, opened]).toEqual([2, 1]);
  events.close();
  await vi.advanceTimersByTimeAsync(10 * AGAIN);
  expect(asked).toHaveLength(2);
});

test("a refusal is the end", async () => {
  answers = [() => new Response("{}", { status: 401 })];
  const events = listening();
  await vi.advanceTimersByTimeAsync(10 * AGAIN);
  expect([asked.length, states, opened, events.readyState]).toEqual([1, [2], 0, 2]);
});
