import { describe, expect, it } from "vitest";
import {
  count,
  delta,
  duration,
  epsilon,
  inHundred,
  listed,
  meaning,
  noiseEffect,
  ownNoise,
  percent,
  publicChoice,
  reachWords,
  size,
  spentBefore,
  strength,
  surest,
} from "./words.ts";

describe("the choice of noise", () => {
  it("is named in multiples of the usual one", () => {
    expect(ownNoise(2)).toMatch(/2\.0 times/);
    expect(ownNoise(1)).not.toMatch(/times/);
  });

  it("is public, and what shows it is said", () => {
    for (const [classes, shows] of [[4, /four classes .* public: .* report/], [0, /server sees .* stops/]] as const) {
      const [short, full] = publicChoice(classes);
      expect(short).toContain("public");
      expect(full).toMatch(shows);
    }
  });

  it("is measured for one who makes it alone and for all", () => {
    expect(noiseEffect(0.912, 0.905, 0.432, 5)).toMatch(/you alone of five .* 90\.5\s%.* instead of 91\.2\s%.* everybody .* 43\.2\s%/);
    expect(noiseEffect(0.912, null, 0.432, 5)).not.toMatch(/alone/);
    expect(noiseEffect(0.912, 0.912, 0.912, 5)).not.toMatch(/alone|instead/);
    expect(noiseEffect(null, null, null, 5)).toMatch(/not measured.*everybody's model/);
  });
});

describe("figures", () => {
  it("says how often a guess can be right: e^eps / (1 + e^eps), and delta on top", () => {
    expect(surest(0)).toBe(0.5);
    expect(surest(Math.log(3))).toBeCloseTo(0.75, 12);
    expect(surest(Math.log(3), 0.1)).toBeCloseTo((3 + 0.1) / 4, 12);
    expect(surest(1000, 0.5)).toBe(1);
  });

  it("rounds a bound up, and never to a certainty", () => {
    expect(inHundred(0.5)).toBe("50 times in 100");
    expect(inHundred(0.7311)).toBe("74 times in 100");
    expect(inHundred(surest(3))).toBe("95.3 times in 100");
    expect(inHundred(surest(9.29))).toBe("99.991 times in 100");
    expect(inHundred(1)).toBe("practically 100 times in 100");
  });

  it("calls what protects nobody by that name", () => {
    expect(strength(20.1)).toEqual({ word: "no meaningful protection", kind: "bad" });
    expect(strength(Number.NaN).kind).toBe("bad");
    expect(strength(1, "client", 0.5)).toEqual({ word: "no meaningful protection", kind: "bad" });
    expect(strength(1, "coordinate", 1e-5)).toEqual({ word: "protection of one number, not of a person", kind: "warn" });
    expect(meaning(5e8, "client")).toMatch(/^No meaningful protection/);
    expect(meaning(3, "record-add-remove")).toContain("at most 95.3 times in 100");
  });

  it("says of what was spent before what it is about, and nothing where nothing was", () => {
    const budget = { limit: 4, basis: "proven", adjacency: "record-add-remove", delta: 1e-5 };
    const about = "(proven, for one of your examples added or removed, against the server, at delta 1e-5)";
    expect(spentBefore(0, budget)).toBe("");
    expect(spentBefore(1.2345, budget)).toContain("epsilon 1.24");
    expect(spentBefore(Infinity, budget)).toContain("no bound");
    for (const before of [1.2345, Infinity]) expect(spentBefore(before, budget)).toContain(about);
  });

  it("says how far a budget reaches, and that the first report costs most where it does", () => {
    const dear = { rounds: 3, left: 3, perRound: [2, 2.1, 2.2], before: 0 };
    expect(reachWords(dear)).toContain("first report costs most");
    expect(reachWords({ ...dear, before: 1 })).not.toContain("first report");
    expect(reachWords({ ...dear, perRound: [1, 2, 3] })).not.toContain("first report");
    expect(reachWords({ ...dear, rounds: 2 })).toContain("not this time");
    expect(reachWords({ ...dear, rounds: 0 })).not.toContain("not this time");
  });

  it("prints numbers as people read them", () => {
    expect([epsilon(4.3844), epsilon(1992.4), epsilon(5.653e8), epsilon(Infinity)]).toEqual([
      "4.39",
      "1,993",
      "5.66e8",
      "infinite",
    ]);
    expect([1, 1.0000000001, 20.04, 999.2, 0.0049991, 0].map((value) => epsilon(value))).toEqual([
      "1",
      "1",
      "20.1",
      "1,000",
      "0.005",
      "0",
    ]);
    expect([epsilon(1.486, "down"), epsilon(9.999, "down"), epsilon(4.3844, "nearest")]).toEqual(["1.48", "9.99", "4.38"]);
    expect([delta(1e-5), delta(0), delta(0.002)]).toEqual(["1e-5", "0", "0.002"]);
    expect([delta(1.4e-5), delta(9.5e-6), delta(3e-9)]).toEqual(["2e-5", "1e-5", "3e-9"]); // rounded up
    expect([size(999), size(2624), size(61_706), size(2_400_000)]).toEqual(["999 bytes", "2.6 kB", "62 kB", "2.4 MB"]);
    expect([duration(0.4), duration(1), duration(431), duration(1e6)]).toEqual([
      "less than a second",
      "1 second",
      "7 minutes",
      "12 days",
    ]);
    expect([percent(0.8837), percent(null), count(1e6), listed(["a", "b", "c"])]).toEqual([
      "88.4\u00a0%",
      "not measured",
      "1,000,000",
      "a, b and c",
    ]);
  });
});
