import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { SessionEvent } from "../session/session.ts";
import { scaleOf } from "./chart.ts";
import { firstCostsMost, onNewerModel } from "./training.ts";

describe("an answer is renewed", () => {
  const renew = vi.fn();
  let tell: (event: SessionEvent) => void;
  const model = (round: number) => tell({ type: "model", round, parameters: new Float32Array() });
  const measured = (round: number) => tell({ type: "accuracy", round, accuracy: 0.5, loss: null });

  beforeEach(() => {
    vi.useFakeTimers();
    renew.mockClear();
    onNewerModel({ subscribe: (listener) => ((tell = listener), () => true) }, renew);
  });
  afterEach(() => vi.useRealTimers());

  test("once where the next plan brings the model at once", async () => {
    measured(1);
    model(1);
    await vi.advanceTimersByTimeAsync(1000);
    expect(renew).toHaveBeenCalledTimes(1);
  });

  test("soon after a round where no plan comes, be it for the pace of rounds, a pause or a spent budget", async () => {
    model(1);
    measured(2);
    expect(renew).toHaveBeenCalledTimes(1);
    await vi.advanceTimersByTimeAsync(1000);
    expect(renew).toHaveBeenCalledTimes(2);
  });
});

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
