import { afterEach, expect, test, vi } from "vitest";
import type { Begin } from "./federation.ts";
import { forget, forgetSoon, remember, remembered } from "./remembering.ts";

const what = { data: { kind: "sample" }, choice: {}, token: "t" } as unknown as Begin;
afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

/** A session storage of a tab. */
function storage(): void {
  const kept = new Map<string, string>();
  vi.stubGlobal("sessionStorage", {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, text: string) => kept.set(key, text),
    removeItem: (key: string) => kept.delete(key),
  });
}

test("what a tab takes part in is known after a reload, until it is forgotten", () => {
  storage();
  remember("demo", "ab", what);
  expect(remembered("demo", "ab")).toMatchObject({ data: "sample", token: "t" });
  expect(remembered("other", "ab")).toBeNull();
  expect(remembered("demo", "cd")).toBeNull(); // it began anew: nobody agreed to that
  forget();
  expect(remembered("demo", "ab")).toBeNull();
});

test.each([
  ["the page is gone by then, as when it is reloaded while it prepares", 100, true, true],
  ["the person tries again", 10_000, false, true],
  ["the page stays where it failed", 10_000, true, false],
])("what fails is forgotten a while later, unless a reload or the person comes first: %s", (_, passed, current, known) => {
  vi.useFakeTimers();
  storage();
  remember("demo", "ab", what);
  forgetSoon(() => current);
  vi.advanceTimersByTime(passed);
  expect(remembered("demo", "ab") !== null).toBe(known);
});

test("a browser without room for that takes part all the same", () => {
  const setItem = () => { throw new DOMException("no room", "QuotaExceededError"); };
  vi.stubGlobal("sessionStorage", { getItem: () => null, setItem, removeItem: () => {} });
  expect(() => remember("demo", "ab", what)).not.toThrow();
  expect(remembered("demo", "ab")).toBeNull();
});
