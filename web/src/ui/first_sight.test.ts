import { expect, test } from "vitest";
import { enough, few } from "./data_choice.ts";
import { expectedLines, placesWords, protectionLine } from "./first_sight.ts";

const budget = { limit: 4, delta: 1e-5, basis: "proven" as const, adjacency: "record-add-remove", adversary: "server" };

test("what is proven is one line without an epsilon, and a claim is never called proven", () => {
  expect(protectionLine(budget)).toMatch(/^Proven: .*98\.3 in 100/);
  expect(protectionLine(budget)).not.toContain("epsilon");
  expect(protectionLine({ ...budget, limit: 30 })).toMatch(/^No meaningful/);
  expect(protectionLine({ ...budget, basis: "claimed" })).toContain("not proven");
  expect(protectionLine(null)).not.toMatch(/proven/i);
});

test("what was reached in tests is told with its participants and its spread, and nothing where nothing was measured", () => {
  const expected = { accuracy: 0.906, low: 0.88, high: 0.92, seeds: 20, participants: 5 };
  expect(expectedLines(expected)).toHaveLength(1);
  for (const part of ["90.6 %", "88.0 % to 92.0 %", "20 runs", "5 participants"]) expect(expectedLines(expected)[0]).toContain(part);
  expect(expectedLines({ ...expected, seeds: 1, low: 0.906, high: 0.906 })[0]).not.toContain("run");
  expect(expectedLines(null)).toEqual([]);
});

test("free places are counted, and a countdown is told", () => {
  expect(placesWords({ clients: 5, free: 1 })).toBe("1 of 5 places is free.");
  expect(placesWords({ clients: 5, free: 2, starts_in: 7.2 })).toContain("8 seconds");
});

test("how many examples matter is what the federation reckons with", () => {
  expect(enough({ training: { kind: "private", expected_batch: 57.4, rate: 0.2 } as never })).toBe(290);
  expect(enough({ training: { kind: "plain" } })).toBe(100);
  expect([few(3, 290), few(57, 290), few(58, 290)]).toEqual([true, true, false]);
});
