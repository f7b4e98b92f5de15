import { describe, expect, it } from "vitest";
import type { Spending, Task } from "./api.ts";
import { barsOf, bindsNothing, groupsOf, provenAfter, shortfall, type Stop, stopsOf, suggested, termsOf, unbounded, up } from "./stops.ts";

const spending = (...epsilon: Spending["epsilon"]): Spending => ({
  basis: "proven",
  adjacency: "record-add-remove",
  adversary: "server",
  delta: 1e-5,
  epsilon,
});

function task(changes: Partial<Task>): Task {
  const strengths = [
    { clients: [0], epsilon: null, mechanism: { name: "none" }, releases: [], spending: [spending(1, 1.5, 2.0004)] },
  ];
  return { budget: null, choices: [], strengths, ...changes } as unknown as Task;
}

describe("the slider's places", () => {
  it("are the rounds that a budget pays for, where noise is the federation's own", () => {
    const known = [{ round: 2, accuracy: 0.8 }] as never;
    expect(stopsOf(task({}), known)).toEqual([
      { limit: 1, noise: null, rounds: 1, accuracy: null, alone: null },
      { limit: 1.5, noise: null, rounds: 2, accuracy: 0.8, alone: null },
      { limit: 2.01, noise: null, rounds: 3, accuracy: null, alone: null },
    ]);
  });

  it("are the noises to choose from, the strongest protection first, where there are any", () => {
    const choices = [
      { noise: 3, spending: spending(1, 3), accuracy: 0.9, alone: 0.9 },
      { noise: 6, spending: spending(0.5, 1.3), accuracy: null, alone: 0.88 },
    ];
    expect(stopsOf(task({ choices }))).toEqual([
      { limit: 1.3, noise: 6, rounds: 2, accuracy: null, alone: 0.88 },
      { limit: 3, noise: 3, rounds: 2, accuracy: 0.9, alone: 0.9 },
    ]);
  });

  it("are at most about forty, the last round always among them", () => {
    const many = Array.from({ length: 200 }, (_, k) => (k + 1) / 10);
    const stops = stopsOf(task({ strengths: [{ ...task({}).strengths[0]!, spending: [spending(...many)] }] }));
    expect(stops.length).toBeLessThanOrEqual(41);
    expect(stops.at(-1)?.rounds).toBe(200);
  });

  it("never pay for less than they are shown to pay for", () => {
    for (const value of [0.12345, 1.2341, 12.341, 1234.1, 5.653e8]) {
      expect(up(value)).toBeGreaterThanOrEqual(value);
      expect(up(value)).toBeLessThan(value * 1.011);
    }
    expect(up(Infinity)).toBe(Infinity);
  });

  it("speak in the terms of the budget that the federation suggests", () => {
    const budget = { limit: 3, delta: 0, basis: "claimed" as const, adjacency: "client", adversary: "server" };
    expect(termsOf(task({ budget }))).toEqual({ basis: "claimed", adjacency: "client", delta: 0 });
    expect(termsOf(task({})).adjacency).toBe("record-add-remove");
  });

  it("are about a person rather than about one number, where the federation suggests no budget", () => {
    const both = [{ ...spending(2, 4), adjacency: "coordinate" }, { ...spending(1277, 2550), adjacency: "client" }];
    const found = task({ strengths: [{ ...task({}).strengths[0]!, spending: both }] });
    expect(termsOf(found).adjacency).toBe("client");
    expect(stopsOf(found).map(({ limit }) => limit)).toEqual([1280, 2550]);
    const [single] = both;
    expect(termsOf(task({ strengths: [{ ...task({}).strengths[0]!, spending: [single!] }] })).adjacency).toBe("coordinate");
  });
});

describe("what is proven beside a claim", () => {
  it("is about the same change, or nothing", () => {
    const proven = [
      { ...spending(45, 90), adjacency: "coordinate" },
      { ...spending(3e4, 6e4), adjacency: "client" },
    ];
    const strengths = [{ ...task({}).strengths[0]!, spending: proven }];
    expect(provenAfter(task({ strengths }), "client", 2)).toEqual({ epsilon: 6e4, delta: 1e-5 });
    expect(provenAfter(task({ strengths }), "record-replace", 2).epsilon).toBe(Infinity);
  });
});

describe("what leaves without a proof", () => {
  const line = (what: string, ...epsilon: Spending["epsilon"]) => ({
    rounds: [1, 2],
    what,
    claimed: null,
    guarantees: epsilon.map((one) => ({ adversary: "server", adjacency: "client", basis: "", epsilon: one, delta: 0 })),
  });
  it("is named, and what has one proof at least is not", () => {
    const releases = [line("weights", "infinite"), line("label", 3, "infinite")];
    const strengths = [{ ...task({}).strengths[0]!, releases }] as unknown as Task["strengths"];
    expect(unbounded(task({ strengths }))).toEqual(["weights"]);
  });
});

describe("the slider", () => {
  const terms = { basis: "proven", adjacency: "record-add-remove", delta: 1e-5 } as const;
  const stops = [0.5, 1, 2, 4, 30].map((limit) => ({ limit }) as Stop);

  it("has a word for each run of stops", () => {
    expect(groupsOf(stops, terms)).toEqual([
      { word: "strong", first: 0, last: 1 },
      { word: "good", first: 2, last: 2 },
      { word: "some", first: 3, last: 3 },
      { word: "none", first: 4, last: 4 },
    ]);
    expect(groupsOf(stops, { ...terms, basis: "claimed" })).toEqual([{ word: "none", first: 0, last: 4 }]);
  });

  it("shows what each round costs, and which ones the limit pays for", () => {
    expect(barsOf([1, 2, 3, Infinity], 2)).toEqual([
      { share: 0.5, paid: true }, { share: 1, paid: true }, { share: 1, paid: false }, { share: 1, paid: false },
    ]);
  });

  it("does not begin with a budget for no round, and says what helps", () => {
    const none = { rounds: 0, left: 20, before: 0 };
    expect(shortfall({ ...none, rounds: 1 }, { most: false, sample: true })).toBe("");
    expect(shortfall(none, { most: false, sample: false })).toContain("slider");
    expect(shortfall(none, { most: true, sample: true })).toMatch(/^(?!.*slider).*sample/);
    expect(shortfall(none, { most: true, sample: false })).not.toMatch(/slider|sample/);
    expect(shortfall({ ...none, rounds: 0, left: 0 }, { most: true, sample: true })).toContain("every round");
  });

  it("stops nothing where nothing that leaves has a bound", () => {
    const releases = (epsilon: number | "infinite") => [{ what: "update", guarantees: [{ epsilon }] }];
    const with_ = (epsilon: number | "infinite") => ({ strengths: [{ releases: releases(epsilon) }] }) as unknown as Task;
    expect([bindsNothing(with_("infinite")), bindsNothing(with_(1))]).toEqual([true, false]);
  });
});

it("the slider begins where the federation's own budget ends, and at the least where that pays for nothing", () => {
  const stops = [1, 2, 3].map((limit) => ({ limit, noise: null, rounds: limit, accuracy: null, alone: null }));
  expect([suggested(stops, 2.5), suggested(stops, 3), suggested(stops, undefined), suggested(stops, 0.1)]).toEqual([1, 2, 2, 0]);
});
