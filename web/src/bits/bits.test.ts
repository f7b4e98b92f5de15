import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { golden as web, stream as webStream } from "../golden.ts";
import { discreteGaussian, exponentOf, gridFor, powerOfTwo } from "./discrete.ts";
import { Keystream, PURPOSE } from "./keystream.ts";
import { Gaussian, Laplace, RandomisedSign, TwoPoint, bitThreshold, laplaceReach } from "./mechanisms.ts";
import { GeometricNoise } from "./noise.ts";
import { rational } from "./rational.ts";

const golden = JSON.parse(readFileSync(new URL("../../../tests/golden/vectors.json", import.meta.url), "utf8"));
const key = Uint8Array.from(Buffer.from(golden.key_hex, "hex"));
const stream = () => Keystream.withKey(key, golden.client, golden.round);
const box = (centre = 0, radius = 1) => ({ centre: Float32Array.of(centre), radius: Float32Array.of(radius) });
const hex = (bytes: Uint8Array) => Buffer.from(bytes).toString("hex");
const sha256 = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");
const laplace = (epsilon: number, steps: number, [n, d]: [string, string]) => {
  const rate = rational(BigInt(n), BigInt(d));
  return new Laplace(steps, GeometricNoise.reaching(rate, laplaceReach(epsilon, steps, rate)), box());
};
const weightsHash = (weights: readonly bigint[]) => sha256(new Uint8Array(BigUint64Array.from(weights).buffer));

describe("the golden vectors of docs/bits.md", () => {
  test("keystream, also from the middle", async () => {
    const words = await stream();
    expect([...(await words.words(PURPOSE.noise, golden.tensor, 0, 12))]).toEqual(golden.keystream.words_from_0);
    expect([...(await words.words(PURPOSE.noise, golden.tensor, 4000, 4))]).toEqual(golden.keystream.words_from_4000);
  });

  test.each(golden.two_point as any[])("two-point, epsilon $epsilon", async (row: any) => {
    expect(bitThreshold(row.epsilon)).toBe(row.t_min);
    const mechanism = new TwoPoint(row.t_min, box(row.centre, row.radius));
    const values = Float32Array.from(row.values as number[]);
    expect([...mechanism.thresholds(values)]).toEqual(row.t.map((t: number) => t || 0));
    expect(hex(await mechanism.randomise(values, await stream(), golden.tensor))).toBe(row.report_hex);
  });

  test.each(golden.sign as any[])("sign: $what", async (row: any) => {
    const mechanism = row.what.startsWith("gaussian")
      ? RandomisedSign.gaussian(0.5, box())
      : RandomisedSign.response(bitThreshold(1), box());
    expect(sha256(new Uint8Array(mechanism.table.buffer))).toBe(row.table_sha256);
    expect([mechanism.table[0], mechanism.table.at(-1)]).toEqual(row.table_ends);
    const report = await mechanism.randomise(Float32Array.from(row.values as number[]), await stream(), golden.tensor);
    expect(hex(report)).toBe(row.report_hex);
  });

  test.each(golden.laplace as any[])("Laplace, epsilon $epsilon", async (row: any) => {
    const mechanism = laplace(row.epsilon, row.steps, row.rate);
    expect(mechanism.limit).toBe(row.limit);
    expect(mechanism.noise.negative).toBe(row.negative);
    const digits = mechanism.noise.digits.map(({ shift, table }) => ({
      shift, size: table.weights.length, weights_sha256: weightsHash(table.weights),
    }));
    expect(digits).toEqual(row.digits);
    const values = Float32Array.from(row.values as number[]);
    expect([...(await mechanism.outputs(values, await stream(), golden.tensor))]).toEqual(row.output);
    expect(hex(await mechanism.randomise(values, await stream(), golden.tensor))).toBe(row.report_hex);
    // The search for the rate ends just below the epsilon asked for; the table built here must confirm that.
    expect(mechanism.loss.type === "Pure" && mechanism.loss.epsilon).toBeLessThanOrEqual(row.epsilon);
    expect(mechanism.loss.type === "Pure" && mechanism.loss.epsilon).toBeGreaterThan(row.epsilon * (1 - 1e-6));
  });

  test.each(golden.gaussian as any[])("Gaussian, sigma $sigma in radius $radius", async (row: any) => {
    const mechanism = Gaussian.of(row.sigma, box(0, row.radius));
    const { steps, limit, noise } = mechanism;
    expect({ steps, limit, levels: noise.levels, offset: noise.offset }).toEqual({
      steps: row.steps, limit: row.limit, levels: row.levels, offset: row.offset,
    });
    expect(weightsHash(noise.table.weights)).toBe(row.weights_sha256);
    const values = Float32Array.from(row.values as number[]);
    expect([...(await mechanism.outputs(values, await stream(), golden.tensor))]).toEqual(row.output);
    expect(hex(await mechanism.randomise(values, await stream(), golden.tensor))).toBe(row.report_hex);
  });
});

describe("whole noise", () => {
  test.each(web.whole_noise as any[])("of 2^$bits steps has Python's table, slack and draws", async (row: any) => {
    const noise = discreteGaussian(row.bits);
    const { levels, digit, offset, slack } = noise;
    expect({ levels, digit, offset }).toEqual({ levels: row.levels, digit: row.digit, offset: row.offset });
    expect(weightsHash(noise.table.weights)).toBe(row.sha256);
    expect(slack.sigma).toBe(row.sigma);
    for (const key of ["eta", "tau"] as const) expect(Math.abs(slack[key] / row[key] - 1)).toBeLessThan(1e-9);
    const words = await (await webStream()).words(PURPOSE.noise, 0, 0, row.draws.length * noise.wordsPerValue);
    expect(row.draws.map((_: number, i: number) => noise.draw(words, i * noise.wordsPerValue))).toEqual(row.draws);
  });

  test.each([
    // multiplier, resolution, grid steps of a clip and bits of the noise: sordino.learning.private_sgd.grid_for
    [0.8, 20, 1_310_719, 20], [2.6473, 20, 396_092, 20], [16.341, 20, 64_168, 20], [0.01, 20, 6_553_599, 16], [1, 4, 15, 4],
    [0.125, 24, 8_388_607, 20],
  ])("has a grid for the multiplier %d at 2^%d", (multiplier, resolution, clip, bits) => {
    const grid = gridFor(multiplier, resolution);
    expect([grid.clip, grid.noise.bits]).toEqual([clip, bits]);
  });

  test("has no grid where a record would have less than 8 steps", () => {
    expect(() => gridFor(3, 4)).toThrow(/the least/);
  });

  test.each([[0, 0], [1, 1], [0.75, 0], [2 ** 31, 32], [2 ** -126, -125], [1 - 2 ** -53, 0], [2 ** 128 - 2 ** 104, 128]])(
    "takes powers of two from the bits of %d", (value, exponent) => {
      expect(exponentOf(value)).toBe(exponent);
      expect(powerOfTwo(exponent)).toBe(2 ** exponent);
    });
});

describe("what a mechanism refuses", () => {
  test("values that are not finite: nothing is released", async () => {
    const mechanism = new TwoPoint(bitThreshold(1), box());
    for (const bad of [NaN, Infinity, -Infinity]) {
      await expect(mechanism.randomise(Float32Array.of(0, bad), await stream())).rejects.toThrow(/NaN or infinity/);
    }
  });

  test("the same words of a fresh key twice", async () => {
    const words = await Keystream.fresh();
    await words.words(PURPOSE.noise, 0, 0, 8);
    await words.words(PURPOSE.noise, 1, 0, 8);
    await words.words(PURPOSE.noise, 0, 8, 8);
    await expect(words.words(PURPOSE.noise, 0, 0, 4)).rejects.toThrow(/already used/);
  });

  test("a Laplace rate of another table gives another loss: a server cannot name its own", () => {
    const [row] = golden.laplace;
    const twice: [string, string] = [String(2n * BigInt(row.rate[0])), row.rate[1]];
    const { loss } = laplace(row.epsilon, row.steps, twice);
    expect(loss.type === "Pure" && loss.epsilon).toBeGreaterThan(1.99);
  });
});
