import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ASKING, follow, type Reach } from "./api.ts";

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
let stop: () => void;

beforeEach(() => {
  vi.useFakeTimers();
  [Source.all, asked, heard, rounds, room] = [[], [], [], [], false];
  vi.stubGlobal("EventSource", Source);
  vi.stubGlobal("fetch", async (path: string) => {
    asked.push(path);
    if (path.endsWith("/events")) {
      return room ? new Response("") : new Response(JSON.stringify({ error: TOO_MANY }), { status: 429 });
    }
    return new Response(JSON.stringify({ name: "demo", history: [{ round: 1 }, { round: 2 }], live: null }));
  });
  stop = follow("demo", {
    round: ({ round }) => rounds.push(round),
    reach: (reach, why) => heard.push([reach, why]),
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
  await vi.advanceTimersByTimeAsync(10_000 * ASKING);
  expect(heard).toEqual([["lost", ""]]);
  expect([asked.length, Source.all.length]).toEqual([0, 1]);
});

test("who has gone elsewhere asks no more", async () => {
  Source.all[0]!.fails(2);
  await vi.advanceTimersByTimeAsync(0);
  stop();
  await vi.advanceTimersByTimeAsync(10_000 * ASKING);
  expect(asked).toHaveLength(2);
  expect(Source.all).toHaveLength(1);
});
