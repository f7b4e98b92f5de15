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
  remember("demo", what);
  expect(remembered("demo")).toMatchObject({ data: "sample", token: "t" });
  expect(remembered("other")).toBeNull();
  forget();
  expect(remembered("demo")).toBeNull();
});

test("a browser without room for that takes part all the same", () => {
  const setItem = () => { throw new DOMException("no room", "QuotaExceededError"); };
  vi.stubGlobal("sessionStorage", { getItem: () => null, setItem, removeItem: () => {} });
  expect(() => remember("demo", what)).not.toThrow();
  expect(remembered("demo")).toBeNull();
});
