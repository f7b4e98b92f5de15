import { createHash } from "node:crypto";
import { describe, expect, test } from "vitest";
import { TENSOR, features as cases, numbers, tasks } from "../golden.ts";
import { Refused } from "../wire/refusal.ts";
import { type NoisySums, type SumsTraining, readTask } from "../wire/task.ts";
import { NormalForm } from "./normal_form.ts";
import { Scattering } from "./scattering.ts";
import { GradientSum, addFlat, wholeWeights } from "./linear_head.ts";
import { SecondMoments, meanFactor, momentsSensitivity } from "./second_moments.ts";
import { FeatureSums } from "./sums.ts";
import { rint } from "./whole.ts";
import { WhitenedRecords, Whitener } from "./whitened.ts";

/** The images that tests/golden/make_features.py has. */
async function imagesOf(shape: number[]): Promise<Float32Array[]> {
  const size = shape.reduce((product, side) => product * side, 1);
  const noise = await numbers(TENSOR.records, size, 2);
  const stroke = Float32Array.from({ length: size }, (_, i) => (i % (shape[2]! + 1) < 2 ? 1 : 0));
  const odd = noise.slice();
  odd.set([NaN, Infinity, -Infinity]);
  return [noise, noise.map((value) => 16 * value), new Float32Array(size).fill(1.5), stroke, new Float32Array(size), odd];
}

function hashed(values: Float32Array | Float64Array | Int16Array, Kind: typeof Int32Array | typeof Float64Array): unknown {
  const every = Math.max(1, Math.floor(values.length / 97));
  const sha256 = createHash("sha256").update(new Uint8Array(Kind.from(values).buffer)).digest("hex");
  return { size: values.length, sha256, every, values: [...values.filter((_, i) => i % every === 0)] };
}

/** The whitening that tests/golden/make_features.py has. */
async function whiteningOf(maps: number) {
  const [left, centre] = [await numbers(TENSOR.values, maps * maps, 2 ** 16), await numbers(TENSOR.weights, maps, 2 ** 20)];
  return { left: left.map(rint), centre: centre.map(rint) };
}

const squares = (values: Iterable<number>): number => [...values].reduce((sum, value) => sum + value * value, 0);

describe.each(cases as any[])("images of $shape, $options, $groups groups, $roots roots", ({ shape, options, groups, roots, limit, ...expected }: any) => {
  const scattering = new Scattering(shape, options);
  const [maps, down, across] = scattering.shape;
  const cells = down * across;

  test("have Python's features, whole vectors, second moments, whitened records and gradients, bit for bit", async () => {
    expect([maps, down, across]).toEqual(expected.maps);
    const form = new NormalForm({ maps, cells, groups, roots }, limit);
    const moments = new SecondMoments(maps, cells, limit);
    const images = await imagesOf(shape);
    const white = new WhitenedRecords(images.length, new Whitener(await whiteningOf(maps), cells), expected.bias, expected.row);
    const { classes } = expected;
    const weights = wholeWeights(await numbers(TENSOR.weights, classes * white.width, 1), white.width - 1, classes);
    const gradients = () => {
      const sum = new GradientSum(classes, white.width, expected.clip, expected.residual);
      sum.begin(weights);
      return sum;
    };
    const together = gradients();
    images.forEach((image, i) => {
      const features = scattering.features(image);
      expect(hashed(features, Int32Array)).toEqual(expected.features[i]);
      const whole = form.whole(features);
      expect(hashed(whole, Int32Array)).toEqual(expected.whole[i]);
      expect(squares(whole)).toBeLessThanOrEqual(limit ** 2);
      moments.add(whole);
      white.set(i, whole, 0);
      const row = white.whole.subarray(i * white.width, (i + 1) * white.width);
      expect(hashed(row, Int32Array)).toEqual(expected.whitened[i]);
      expect(squares(row)).toBeLessThanOrEqual(expected.row ** 2);
      expect(white.scales[i]).toBe(expected.scales[i]);
      const alone = gradients();
      for (const sum of [alone, together]) sum.add(row, white.scales[i]!, white.length, i % classes);
      expect(squares(alone.now.total)).toBeLessThanOrEqual((expected.row * expected.residual) ** 2);
    });
    expect(hashed(moments.sums, Float64Array)).toEqual(expected.moments);
    const sum = new Float64Array(weights.length);
    addFlat(sum, together.now.total, white.width - 1, classes);
    expect(hashed(sum, Float64Array)).toEqual(expected.sums);
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
  const form = (groups: number, limit = 1000, roots = 0) => new NormalForm({ maps: 6, cells: 2, groups, roots }, limit);

  test("does not see a group's level, nor its scale but for rounding", () => {
    const whole = form(3).whole(features);
    const shifted = features.map((value, i) => value + (i < 4 ? 4000 : 0));
    const doubled = features.map((value, i) => (i >= 8 ? 2 * value : value));
    expect(form(3).whole(shifted)).toEqual(whole);
    form(3).whole(doubled).forEach((value, i) => expect(Math.abs(value - whole[i]!)).toBeLessThanOrEqual(1));
    expect(form(1).whole(shifted)).not.toEqual(form(1).whole(features));
  });

  test("takes roots of the size, and keeps signs", () => {
    const whole = form(0, 1000, 1).whole(features);
    expect([...whole].map(Math.sign)).toEqual(features.map(Math.sign));
    expect(whole[5]! / whole[3]!).toBeCloseTo(3, 1);
  });

  test("has nearly the largest norm that it may have, and 0 where all values of each group are equal", () => {
    for (const groups of [0, 1, 3]) {
      for (const limit of [20, 1000, 4096]) {
        const found = Math.sqrt(squares(form(groups, limit).whole(features)));
        expect(found).toBeLessThanOrEqual(limit);
        expect(found).toBeGreaterThan(0.9 * limit);
      }
    }
    expect(squares(form(6).whole([7, 7, 1, 1, 2, 2, 0, 0, -3, -3, 4, 4]))).toBe(0);
  });

  test.each([NaN, Infinity, 2 ** 60])("takes a feature of %d without harm", (value) => {
    const whole = form(1).whole(features.with(0, value));
    expect(squares(whole)).toBeLessThanOrEqual(1000 ** 2);
    expect(squares(whole)).toBeGreaterThan(900 ** 2);
  });

  test.each([-1, 4, 1.5, NaN])("refuses %d groups of 6 maps", (groups) => {
    expect(() => form(groups)).toThrow(Refused);
  });

  test.each([-1, 5, 0.5])("refuses %d roots", (roots) => {
    expect(() => form(1, 1000, roots)).toThrow(Refused);
  });
});

describe("second moments", () => {
  test("are the upper triangle of u u^T and the scaled sum over cells, summed", () => {
    const moments = new SecondMoments(2, 3, 10); // floor(10 / sqrt(3)) = 5
    moments.add([1, 2, 3, 4, 5, 6]);
    expect([...moments.sums]).toEqual([14, 32, 77, 30, 75]);
    moments.add([9, -1, 0, 0, 1, 0, 0], 1);
    expect([...moments.sums]).toEqual([15, 31, 78, 25, 80]);
  });

  test("of any number of vectors are right modulo 2^52, where a float64 alone would lose their last digits", () => {
    const [most, count] = [32_767, 2 ** 23 + 2 ** 20 + 1];
    const moments = new SecondMoments(1, 1, most);
    const part = new Int16Array(2 ** 20).fill(most);
    for (let done = 0; done < count; done += part.length) moments.add(part, 0, Math.min(part.length, count - done));
    const expected = Number(BigInt.asIntN(52, BigInt(count) * BigInt(most) ** 2n));
    expect([...moments.sums]).toEqual([expected, expected]);
  });

  test("of one vector are never longer than their sensitivity, and even vectors nearly reach it", () => {
    for (const [cells, limit] of [[1, 5], [4, 2], [49, 7], [49, 100]] as const) {
      const moments = new SecondMoments(1, cells, limit);
      moments.add(new Float64Array(cells).fill(Math.floor(limit / Math.sqrt(cells))));
      const length = Math.sqrt(squares(moments.sums));
      expect(length).toBeLessThanOrEqual(momentsSensitivity(limit));
      expect(length).toBeGreaterThan(0.9 * momentsSensitivity(limit));
    }
  });

  test("have no mean of vectors that are too short for a bounded one", () => {
    expect([6, 7, 13, 14].map((limit) => meanFactor(limit, 49))).toEqual([0, 1, 1, 2]);
    const moments = new SecondMoments(1, 49, 6);
    moments.add(new Float64Array(49).fill(1));
    expect([...moments.sums]).toEqual([49, 0]);
  });
});

describe("sums over records", () => {
  const task = readTask(tasks["proven-digits"]);
  const training = task.training as SumsTraining;
  const { maps } = training;
  const { limits } = task.strengths[0]!.mechanism as NoisySums;
  const whitening = { left: Float32Array.from({ length: maps * maps }, (_, i) => (i % (maps + 1) ? 3 : 60_000)), centre: new Float32Array(maps).fill(40) };

  test("are the same whether blocks of them are kept, made again in every round, or there is no memory for them", async () => {
    const records = await numbers(TENSOR.records, 23 * 64, 1);
    const labels = Int32Array.from({ length: 23 }, (_, i) => i % 10);
    const parameters = await numbers(TENSOR.weights, task.model.size, 0.01);
    const of = async (room?: { block: number; kept: number }, each = 23) => {
      const sums = new FeatureSums(task, training, room);
      sums.take(new Float32Array(64), new Int32Array(1)); // forgotten
      sums.take(records.subarray(0, each * 64), labels.subarray(0, each));
      for (let i = each; i < 23; i += each) sums.add(records.subarray(i * 64, (i + each) * 64), labels.subarray(i, i + each));
      const found = [];
      for (const by of [null, whitening, whitening]) found.push((await sums.sum(parameters, { limits, whitening: by }, () => {})).sums);
      return found;
    };
    const found = await of();
    expect(await of({ block: 5, kept: 0 }, 4)).toEqual(found); // and come in blocks of others
    expect(await of({ block: 5, kept: 2 ** 30 })).toEqual(found);
    expect(await of({ block: 5, kept: 11_000 })).toEqual(found); // two blocks
  });

  test("may be of any number: one more is never too many for an array", async () => {
    const large = structuredClone(tasks["proven-digits"]);
    large.input.shape = [1, 28, 28];
    const wide = { ...training, extractor: { kind: "scattering" as const, scales: 2, angles: 32, orders: 2 }, maps: 1 + 64 + 1024, cells: 49 };
    const sums = new FeatureSums(large, wide);
    for (const count of [80_488, 80_489]) {
      sums.take(new Float32Array(784), new Int32Array(count)); // their values do not matter
      await expect(sums.sum(new Float32Array(), { limits, whitening: null }, () => { throw new Error("on it goes"); }), String(count)).rejects.toThrow("on it goes");
    }
  });
});
