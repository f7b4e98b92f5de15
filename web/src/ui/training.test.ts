import { describe, expect, test } from "vitest";
import { scaleOf } from "./chart.ts";
import { firstCostsMost } from "./training.ts";

describe("the first report", () => {
  test("costs most where each later one adds less", () => {
    expect(firstCostsMost([1.86, 1.97, 2.08], 2.19)).toBe(true);
    expect(firstCostsMost([1.86], 1.97)).toBe(true);
  });

  test("is no dearer than others where each costs the same, and that is not said before a second is known", () => {
    expect(firstCostsMost([3, 6, 9], 12)).toBe(false);
    expect(firstCostsMost([3], null)).toBe(false);
    expect(firstCostsMost([], 3)).toBe(false);
    expect(firstCostsMost([3], Infinity)).toBe(false);
  });
});

describe("a chart as narrow as a phone", () => {
  const content = { series: [], last: 200, top: 1 };
  const letter = 9; // of words of 13 px, at most

  test.each([12, 20, 200, 1000])("has room between the figures below it, and before the axis' name, for %i rounds", (rounds) => {
    for (const width of [330, 440]) {
      const { x, xTicks } = scaleOf({ ...content, last: rounds }, width);
      const ends = xTicks.map((tick) => ({ left: x(tick) - (letter * String(tick).length) / 2, right: x(tick) + (letter * String(tick).length) / 2 }));
      ends.slice(1).forEach(({ left }, k) => expect(left - ends[k]!.right).toBeGreaterThan(6));
      expect(width - 5 * letter - ends.at(-1)!.right).toBeGreaterThan(0);
    }
  });
});
