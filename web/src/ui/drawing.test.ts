import { describe, expect, it } from "vitest";
import { niceStep } from "./chart.ts";
import { centred } from "./pad.ts";

/** A side x side drawing with one filled box. */
function box(side: number, left: number, top: number, width: number, height: number): Float32Array {
  return new Float32Array(side * side).map((_, k) => {
    const x = k % side,
      y = Math.floor(k / side);
    return x >= left && x < left + width && y >= top && y < top + height ? 255 : 0;
  });
}

describe("a drawing in the model's size", () => {
  it("is the same wherever it was drawn", () => {
    expect(centred(box(280, 10, 20, 80, 160), 280, 8, 8)).toEqual(centred(box(280, 150, 90, 80, 160), 280, 8, 8));
  });

  it("fills small pictures to the edge and keeps its proportions", () => {
    const picture = centred(box(280, 100, 40, 80, 160), 280, 8, 8);
    const rows = Array.from({ length: 8 }, (_, row) => [...picture.slice(8 * row, 8 * row + 8)]);
    for (const row of rows) expect(row).toEqual([0, 0, 255, 255, 255, 255, 0, 0]);
  });

  it("leaves a margin of a seventh in larger ones, as MNIST does", () => {
    const picture = centred(box(280, 0, 0, 100, 100), 280, 28, 28);
    const inked = [...picture.keys()].filter((k) => picture[k]! > 127);
    expect(Math.min(...inked.map((k) => k % 28))).toBe(4);
    expect(Math.max(...inked.map((k) => k % 28))).toBe(23);
    expect(inked.length).toBe(400);
  });

  it("is empty where nothing was drawn", () => {
    expect(centred(new Float32Array(280 * 280), 280, 8, 8).every((value) => value === 0)).toBe(true);
  });
});

describe("a chart's steps", () => {
  it("are whole where rounds are counted", () => {
    expect([12, 20, 40, 200].map((rounds) => niceStep(rounds, 5, [1, 2, 5, 10]))).toEqual([5, 5, 10, 50]);
  });

  it("are round numbers", () => {
    expect([niceStep(1, 4), niceStep(3.36, 4), niceStep(20, 5), niceStep(200, 5), niceStep(600, 4)]).toEqual([
      0.25, 1, 5, 50, 200,
    ]);
  });
});
