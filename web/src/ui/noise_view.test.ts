import { describe, expect, test } from "vitest";
import type { Task } from "./api.ts";
import { layoutOf, noiseWords, reach, shade } from "./noise_view.ts";

describe("a colour", () => {
  const light = ([r, g, b]: readonly number[]): number => 0.299 * r! + 0.587 * g! + 0.114 * b!;

  test("says less or more, and how much, by its brightness too", () => {
    const [less, none, more] = [shade(-1), shade(0), shade(1)];
    expect(less[2]).toBeGreaterThan(less[0]);
    expect(more[0]).toBeGreaterThan(more[2]);
    expect(none).toEqual([247, 247, 247]);
    expect(Math.abs(light(less) - light(more))).toBeLessThan(20);
    expect([light(none), light(shade(0.3)), light(shade(0.6)), light(more)].every((l, k, all) => k === 0 || l < all[k - 1]!)).toBe(true);
  });

  test("is that of the end for what lies beyond it, and of no change for what is no number", () => {
    expect(shade(7)).toEqual(shade(1));
    expect(shade(-7)).toEqual(shade(-1));
    expect(shade(NaN)).toEqual(shade(0));
  });
});

describe("a vector is drawn", () => {
  const task = (change: object = {}): Task =>
    ({ input: { shape: [1, 8, 8], kind: "image" }, classes: Array.from("0123456789"), upload: { what: "update" }, ...change }) as unknown as Task;

  test("as one picture for each class where a linear model looks at pixels", () => {
    expect(layoutOf(task(), 650)).toEqual({ kind: "classes", width: 8, height: 8, pictures: 10 });
  });

  test("as one map of all values otherwise", () => {
    for (const [given, values] of [
      [task(), 651],
      [task({ upload: { what: "sums" } }), 650],
      [task({ input: { shape: [64], kind: "features" } }), 650],
      [task({ input: { shape: [3, 8, 8], kind: "image" } }), 650],
    ] as const) {
      const layout = layoutOf(given, values);
      expect(layout).toMatchObject({ kind: "map", pictures: 1 });
      expect(layout.width * layout.height).toBeGreaterThanOrEqual(values);
    }
    const { width, height } = layoutOf(task(), 4_000_000);
    expect(width * height).toBeLessThan(50_000);
  });
});

test("one value that stands out does not turn the others pale", () => {
  expect(reach(Float32Array.from({ length: 100 }, (_, i) => (i === 7 ? 1000 : -1)))).toBe(1);
  expect(reach(new Float32Array(100))).toBe(1);
  expect(reach(Float32Array.of(0, 0, -3))).toBe(3);
});

test("the size of the noise is told beside what it hides", () => {
  const clear = Float32Array.of(3, 4);
  expect(noiseWords(clear, Float32Array.of(3 + 9, 4 + 12))).toContain("3.0 times");
  expect(noiseWords(clear, Float32Array.of(3, 4.5))).toContain("10 %");
  expect(noiseWords(clear, clear)).not.toMatch(/\d/);
  expect(noiseWords(new Float32Array(2), clear)).not.toMatch(/\d/);
});
