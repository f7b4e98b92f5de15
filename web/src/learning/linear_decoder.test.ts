import { expect, test } from "vitest";
import { LinearDecoder, solve } from "./linear_decoder.ts";

test("a system of equations is solved", () => {
  const b = Float64Array.of(10, 8);
  solve(Float64Array.of(4, 2, 2, 3), b);
  expect(b[0]).toBeCloseTo(1.75, 12);
  expect(b[1]).toBeCloseTo(1.5, 12);
});

// seen -1 and 1 are values 8 and 12: the slope is 4 / (2 + 2 variance + ridge), and the least ridge is 0.03
const decoder = () => new LinearDecoder([-1, 1], [8, 12], 2);

test("without noise, values follow what is seen", () => {
  expect(decoder().decode([0.5], 0)[0]).toBeCloseTo(10 + 2 / 2.03, 12);
});

test("the more noise, the nearer to the mean", () => {
  expect(decoder().decode([0.5], 1)[0]).toBeCloseTo(10 + 2 / 4.03, 12);
  expect(decoder().decode([0.5], 1e9)[0]).toBeCloseTo(10, 6);
});
