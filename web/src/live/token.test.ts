import { expect, test } from "vitest";
import { takeToken } from "./token.ts";

/** A tab with an address and what it has kept. */
function tab(hash: string, kept: Record<string, string> = {}) {
  const addresses: string[] = [];
  const storage = { getItem: (key: string) => kept[key] ?? null, setItem: (key: string, value: string) => void (kept[key] = value) };
  const past = { replaceState: (_: unknown, __: string, address?: string | URL | null) => void addresses.push(String(address)) };
  return { token: takeToken({ hash, pathname: "/live" }, past, storage), addresses, kept };
}

test("a token leaves the address at once, and stays in the tab", () => {
  const first = tab("#token=abc_-1");
  expect([first.token, first.addresses]).toEqual(["abc_-1", ["/live"]]);
  const again = tab("", first.kept);
  expect([again.token, again.addresses]).toEqual(["abc_-1", []]);
});

test("the federation that a link names stays in the address", () => {
  expect(tab("#/my%20digits?token=abc")).toMatchObject({ token: "abc", addresses: ["/live#/my%20digits"] });
  expect(tab("#/digits")).toMatchObject({ token: "", addresses: [] });
});
