import { createHash } from "node:crypto";
import { describe, expect, test } from "vitest";
import { TENSOR, features as cases, numbers } from "../golden.ts";
import { Refused } from "../wire/refusal.ts";
import { NormalForm } from "./normal_form.ts";
import { Scattering } from "./scattering.ts";
import { SecondMoments } from "./second_moments.ts";

/** The images that tests/golden/make_features.py has. */
async function imagesOf(shape: number[]): Promise<Float32Array[]> {
  const size = shape.reduce((product, side) => product * side, 1);
  const noise = await numbers(TENSOR.records, size, 2);
  const stroke = Float32Array.from({ length: size }, (_, i) => (i % (shape[2]! + 1) < 2 ? 1 : 0));
  const odd = noise.slice();
  odd.set([NaN, Infinity, -Infinity]);
  return [noise, noise.map((value) => 16 * value), new Float32Array(size).fill(1.5), stroke, new Float32Array(size), odd];
}

function hashed(values: Float32Array | Float64Array, Kind: typeof Int32Array | typeof Float64Array): unknown {
  const every = Math.max(1, Math.floor(values.length / 97));
  const sha256 = createHash("sha256").update(new Uint8Array(Kind.from(values).buffer)).digest("hex");
  return { size: values.length, sha256, every, values: [...values.filter((_, i) => i % every === 0)] };
}

describe.each(cases as any[])("images of $shape, $options", ({ shape, options, groups, limit, ...expected }: any) => {
  const scattering = new Scattering(shape, options);
  const [maps, down, across] = scattering.shape;

  test("have Python's features, whole vectors and second moments, bit for bit", async () => {
    expect([maps, down, across]).toEqual(expected.maps);
    const form = new NormalForm(maps, down * across, groups, limit);
    const moments = new SecondMoments(maps, down * across);
    (await imagesOf(shape)).forEach((image, i) => {
      const features = scattering.features(image);
      expect(hashed(features, Int32Array)).toEqual(expected.features[i]);
      const whole = form.whole(features);
      expect(hashed(whole, Int32Array)).toEqual(expected.whole[i]);
      expect(whole.reduce((sum, value) => sum + value * value, 0)).toBeLessThanOrEqual(limit ** 2);
      moments.add(whole);
    });
    expect(hashed(moments.sums, Float64Array)).toEqual(expected.moments);
  });
});

describe("scattering", () => {
  const options = { scales: 1, angles: 4, orders: 2 };

  test("takes one image of many, whatever is beside it", async () => {
    const scattering = new Scattering([1, 8, 8], options);
    const image = await numbers(TENSOR.records, 64, 1);
    const many = new Float32Array(3 * 64).fill(2);
    many.set(image, 64);
    expect(scattering.features(many, 64)).toEqual(scattering.features(image));
  });

  test("gives an even surface its value at order 0, and nearly nothing above", () => {
    const [level, ...waves] = [...new Scattering([1, 8, 8], options).features(new Float32Array(64).fill(0.5))];
    expect(Math.abs(level! / 2 ** 20 - 0.5)).toBeLessThan(1e-3);
    expect(waves.slice(15).every((value) => Math.abs(value) < 2)).toBe(true);
  });

  test.each([
    ["no scales", [1, 8, 8], { ...options, scales: 0 }],
    ["more scales than an image has", [1, 8, 8], { ...options, scales: 4 }],
    ["half an angle", [1, 8, 8], { ...options, angles: 4.5 }],
    ["a third order", [1, 8, 8], { ...options, orders: 3 }],
    ["no channel", [0, 8, 8], options],
  ])("refuses %s", (_, shape, given) => {
    expect(() => new Scattering(shape as [number, number, number], given)).toThrow(Refused);
  });
});

describe("the normal form", () => {
  const features = [3, -1, 4, 1, -5, 9, 2, -6, 5, 3, 5, 8].map((value) => value * 1000);

  test("does not see a group's level, nor its scale but for rounding", () => {
    const form = new NormalForm(6, 2, 3, 1000);
    const whole = form.whole(features);
    const shifted = features.map((value, i) => value + (i < 4 ? 4000 : 0));
    const doubled = features.map((value, i) => (i >= 8 ? 2 * value : value));
    expect(form.whole(shifted)).toEqual(whole);
    form.whole(doubled).forEach((value, i) => expect(Math.abs(value - whole[i]!)).toBeLessThanOrEqual(1));
    expect(new NormalForm(6, 2, 1, 1000).whole(shifted)).not.toEqual(new NormalForm(6, 2, 1, 1000).whole(features));
  });

  test("has nearly the largest norm that it may have, and 0 where all values of each group are equal", () => {
    const norm = (whole: Float64Array) => Math.hypot(...whole);
    for (const limit of [20, 1000, 4096]) {
      const found = norm(new NormalForm(6, 2, 3, limit).whole(features));
      expect(found).toBeLessThanOrEqual(limit);
      expect(found).toBeGreaterThan(0.9 * limit);
    }
    expect(norm(new NormalForm(6, 2, 6, 1000).whole([7, 7, 1, 1, 2, 2, 0, 0, -3, -3, 4, 4]))).toBe(0);
  });

  test.each([0, 4, 1.5, NaN])("refuses %d groups of 6 maps", (groups) => {
    expect(() => new NormalForm(6, 2, groups, 1000)).toThrow(Refused);
  });
});

test("second moments are the upper triangles of u u^T and of u^T u, summed", () => {
  const moments = new SecondMoments(2, 3);
  moments.add([1, 2, 3, 4, 5, 6]);
  expect([...moments.sums]).toEqual([14, 32, 77, 17, 22, 27, 29, 36, 45]);
  moments.add([-1, 0, 0, 1, 0, 0]);
  expect([...moments.sums]).toEqual([15, 31, 78, 19, 22, 27, 29, 36, 45]);
});
