import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { SILENCE } from "../wire/fetching.ts";
import { ASKING, STILL, follow, type Reach } from "./api.ts";

/** The browser's event source, as far as a test needs it; the test opens, fails and closes it. */
class Source extends EventTarget {
  static all: Source[] = [];
  readyState = 0;
  onopen: (() => void) | null = null;
  onerror: (() => void) | null = null;

  constructor(readonly url: string) {
    super();
    Source.all.push(this);
  }

  opens(): void {
    this.readyState = 1;
    this.onopen?.();
  }

  tells(event: string, value: object = {}): void {
    this.dispatchEvent(new MessageEvent(event, { data: JSON.stringify(value) }));
  }

  fails(state: 0 | 2): void {
    this.readyState = state;
    this.onerror?.();
  }

  close(): void {
    this.readyState = 2;
  }
}

const TOO_MANY = "80 event streams are open from your network address";
let room = false;
let asked: string[] = [];
let heard: [Reach, string][] = [];
let rounds: number[] = [];
let renewed = 0;
let federation = "demo-1";
let stop: () => void;

beforeEach(() => {
  vi.useFakeTimers();
  [Source.all, asked, heard, rounds, room, renewed, federation] = [[], [], [], [], false, 0, "demo-1"];
  vi.stubGlobal("EventSource", Source);
  vi.stubGlobal("fetch", async (path: string) => {
    asked.push(path);
    if (path.endsWith("/events")) {
      return room ? new Response("") : new Response(JSON.stringify({ error: TOO_MANY }), { status: 429 });
    }
    return new Response(JSON.stringify({ name: "demo", federation, history: [{ round: 1 }, { round: 2 }], live: null }));
  });
  stop = follow({ name: "demo", federation: "demo-1", history: [{ round: 1 }] as never }, {
    round: ({ round }) => rounds.push(round),
    reach: (reach, why) => heard.push([reach, why]),
    renewed: () => (renewed += 1),
  });
});

afterEach(() => {
  stop();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("a page that may not watch says why, asks now and then, and watches when there is room", async () => {
  Source.all[0]!.fails(2);
  await vi.advanceTimersByTimeAsync(0);
  expect(heard).toEqual([["lost", ""], ["asking", TOO_MANY]]);
  expect(rounds).toEqual([1, 2]);
  await vi.advanceTimersByTimeAsync(1000 * ASKING);
  expect(asked.filter((path) => path === "/api/federations/demo")).toHaveLength(2);
  room = true;
  await vi.advanceTimersByTimeAsync(1000 * ASKING);
  expect(Source.all).toHaveLength(2);
  Source.all[1]!.opens();
  expect(heard.at(-1)).toEqual(["told", ""]);
  await vi.advanceTimersByTimeAsync(10_000 * ASKING);
  expect(asked).toHaveLength(5); // it asks no more
});

test("a network that fails for a moment is left to the browser, which connects again by itself", async () => {
  Source.all[0]!.fails(0);
  await vi.advanceTimersByTimeAsync(1000 * (STILL - 1));
  expect(heard).toEqual([["lost", ""]]);
  expect([asked.length, Source.all.length]).toEqual([0, 1]);
});

test("a stream that dies without a word, as while a laptop sleeps, is opened again; one with a word now and then is not", async () => {
  const [first] = Source.all;
  first!.opens();
  for (let quarter = 0; quarter < 10; quarter += 1) {
    await vi.advanceTimersByTimeAsync(5_000);
    first!.tells("still");
  }
  expect(Source.all).toHaveLength(1);
  await vi.advanceTimersByTimeAsync(1000 * STILL);
  expect([first!.readyState, Source.all.length]).toEqual([2, 2]);
  expect(heard).toEqual([["told", ""], ["lost", ""]]);
  await vi.advanceTimersByTimeAsync(1000 * STILL); // nor does one stay that never began
  expect(Source.all).toHaveLength(3);
});

test("rounds that came while nobody listened are asked for", () => {
  expect(Source.all[0]!.url).toBe("/api/federations/demo/events?after=1");
});

test.each(["told", "asked"])("another federation under the same name is noticed, %s of it, and nothing of it is mixed in", async (how) => {
  federation = "demo-2";
  if (how === "told") Source.all[0]!.tells("summary", { name: "demo", federation });
  else Source.all[0]!.fails(2);
  await vi.advanceTimersByTimeAsync(10_000 * ASKING);
  expect([renewed, rounds, Source.all.length]).toEqual([1, [], 1]);
  expect(Source.all[0]!.readyState).toBe(2);
});

test("a server that never answers what it is asked is asked again", async () => {
  vi.stubGlobal("fetch", (path: string, { signal }: RequestInit) => {
    asked.push(path);
    return new Promise((_, reject) => signal!.addEventListener("abort", () => reject(signal!.reason)));
  });
  Source.all[0]!.fails(2);
  await vi.advanceTimersByTimeAsync(SILENCE);
  expect(heard.at(-1)).toEqual(["lost", ""]);
  await vi.advanceTimersByTimeAsync(1000 * ASKING);
  expect(asked).toHaveLength(2);
});

test("who has gone elsewhere asks no more", async () => {
  Source.all[0]!.fails(2);
  await vi.advanceTimersByTimeAsync(0);
  stop();
  await vi.advanceTimersByTimeAsync(10_000 * ASKING);
  expect(asked).toHaveLength(2);
  expect(Source.all).toHaveLength(1);
});
