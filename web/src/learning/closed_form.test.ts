import { expect, test } from "vitest";
import { noiseIn, recordIn, rowsOf } from "./closed_form.ts";

test("weights and biases become one row for each class", () => {
  expect([...rowsOf([1, 2, 3, 4, 5, 6], 2)]).toEqual([1, 2, 5, 3, 4, 6]);
});

test("a record is read off its gradient exactly, whatever the classes", () => {
  // (3, 4, 1) of class 1 of two: residuals (1/2, -1/2)
  expect([...recordIn(Float64Array.of(1.5, 2, 0.5, -1.5, -2, -0.5), 2, 1)]).toEqual([3, 4, 1]);
  // (2, 1) of class 0 of four: residuals (-3/4, 1/4, 1/4, 1/4)
  expect([...recordIn(Float64Array.of(-1.5, -0.75, 0.5, 0.25, 0.5, 0.25, 0.5, 0.25), 4, 0)]).toEqual([2, 1]);
});

test("noise is told from rows of other classes, which are the same without it", () => {
  expect(noiseIn(Float64Array.of(-1.5, -0.75, 0.5, 0.25, 0.5, 0.25, 0.5, 0.25), 4, 0)).toBe(0);
  // rows 1 and -1: variance 2, and the record is the sum of residuals times rows, over 2/3
  expect(noiseIn(Float64Array.of(7, 1, -1), 3, 0)).toBeCloseTo(3, 12);
});
