import { expect, test } from "vitest";
import type { Task } from "./api.ts";
import { enough, few, matchedWords } from "./data_choice.ts";
import { expectedLines, placesWords, protectionLine, wholeBudget } from "./first_sight.ts";

const budget = { limit: 4, delta: 1e-5, basis: "proven" as const, adjacency: "record-add-remove", adversary: "server" };

test("what is proven is one line without an epsilon, and a claim is never called proven", () => {
  expect(protectionLine(budget)).toMatch(/^Proven: .*98\.3 in 100/);
  expect(protectionLine(budget)).not.toContain("epsilon");
  expect(protectionLine({ ...budget, limit: 30 })).toMatch(/^No meaningful/);
  expect(protectionLine({ ...budget, basis: "claimed" })).toContain("not proven");
  expect(protectionLine(null)).toMatch(/^Nothing is proven/);
});

test("without a budget of the recipe's own, what all rounds cost is told", () => {
  const spending = [{ basis: "proven", adjacency: "client", adversary: "server", delta: 0, epsilon: [1, 2] }];
  const task = (strengths: object[]) => ({ budget: null, choices: [], strengths }) as unknown as Task;
  expect(wholeBudget(task([{ spending, releases: [] }]))).toEqual({ basis: "proven", adjacency: "client", delta: 0, limit: 2 });
  expect(wholeBudget(task([{ spending: [], releases: [] }]))).toBeNull();
  expect(wholeBudget({ ...task([{ spending, releases: [] }]), budget })).toBe(budget);
});

test("a budget that a federation names is not proven by being named", () => {
  const spending = (...epsilon: unknown[]) => [{ basis: "proven", adjacency: "client", adversary: "server", delta: 0, epsilon }];
  const task = (epsilon: unknown[], figure: number | "infinite") =>
    ({ budget, choices: [], strengths: [{ spending: spending(...epsilon), releases: [{ what: "update", guarantees: [{ epsilon: figure }] }] }] }) as unknown as Task;
  expect(wholeBudget(task([1, 2], 1))).toBe(budget);
  expect(wholeBudget(task([7, 9], 7))).toMatchObject({ limit: 7 }); // the slider begins there
  expect(wholeBudget(task(["infinite"], "infinite"))).toBeNull();
  expect(wholeBudget({ ...task(["infinite"], "infinite"), budget: { ...budget, basis: "claimed" } })).toMatchObject({ basis: "claimed" });
});

test("what was reached in tests is told with its participants and its spread, and nothing where nothing was measured", () => {
  const expected = { accuracy: 0.906, low: 0.88, high: 0.92, seeds: 20, participants: 5 };
  expect(expectedLines(expected)).toHaveLength(1);
  for (const part of ["90.6\u00a0%", "88.0\u00a0% to 92.0\u00a0%", "20 runs", "5 participants"]) expect(expectedLines(expected)[0]).toContain(part);
  expect(expectedLines({ ...expected, seeds: 1, low: 0.906, high: 0.906 })[0]).not.toContain("run");
  expect(expectedLines(null)).toEqual([]);
});

test("free places are counted, and a countdown is told", () => {
  expect(placesWords({ clients: 5, free: 1 })).toBe("1 of 5 places is free.");
  expect(placesWords({ clients: 5, free: 5 })).toBe("All 5 places are free.");
  expect(placesWords({ clients: 5, free: 2, starts_in: 7.2 })).toContain("8 seconds");
});

test("how many examples matter is what the federation reckons with", () => {
  expect(enough({ training: { kind: "private", expected_batch: 57.4, rate: 0.2 } as never })).toBe(290);
  expect(enough({ training: { kind: "plain" } })).toBe(100);
  expect([few(3, 290), few(57, 290), few(58, 290)]).toEqual([true, true, false]);
});

test("the columns of a table that were taken are named, the first ten where there are many", () => {
  for (const part of ["age", "BMI", "“ill”"]) expect(matchedWords({ columns: ["age", "BMI"], label: "ill" })).toContain(part);
  const many = Array.from({ length: 54 }, (_, k) => `c${k}`);
  expect(matchedWords({ columns: many, label: "y" })).toMatch(/54 columns: c0, .*c9 and 44 more/);
});
