import { afterEach, expect, test, vi } from "vitest";
import type { Begin } from "./federation.ts";
import { forget, remember, remembered } from "./remembering.ts";

const what = { data: { kind: "sample" }, choice: {}, token: "t" } as unknown as Begin;
afterEach(() => vi.unstubAllGlobals());

test("what a tab takes part in is known after a reload, until it is forgotten", () => {
  const kept = new Map<string, string>();
  vi.stubGlobal("sessionStorage", {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, text: string) => kept.set(key, text),
    removeItem: (key: string) => kept.delete(key),
  });
  remember("demo", "ab", what);
  expect(remembered("demo", "ab")).toMatchObject({ data: "sample", token: "t" });
  expect(remembered("other", "ab")).toBeNull();
  expect(remembered("demo", "cd")).toBeNull(); // it began anew: nobody agreed to that
  forget();
  expect(remembered("demo", "ab")).toBeNull();
});

test("a browser without room for that takes part all the same", () => {
  const setItem = () => { throw new DOMException("no room", "QuotaExceededError"); };
  vi.stubGlobal("sessionStorage", { getItem: () => null, setItem, removeItem: () => {} });
  expect(() => remember("demo", "ab", what)).not.toThrow();
  expect(remembered("demo", "ab")).toBeNull();
});
