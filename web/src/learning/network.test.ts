import { beforeAll, describe, expect, test } from "vitest";
import { TENSOR, golden, numbers, words } from "../golden.ts";
import { JaxMultiplier, type Multiplier, ScriptMultiplier } from "./multiply.ts";
import { Network } from "./network.ts";
import { Records } from "./records.ts";
import { wholeGradient } from "./whole.ts";

const STEPS = 2 ** 20;

/** The largest difference over the largest magnitude. */
export function away(own: ArrayLike<number>, theirs: readonly number[]): number {
  expect(own.length).toBe(theirs.length);
  const largest = theirs.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-30);
  return theirs.reduce((most, value, i) => Math.max(most, Math.abs(own[i]! - value)), 0) / largest;
}

function compare(own: Float64Array, some: { every: number; values: number[]; norm: number }, near = 1e-4): void {
  const chosen = some.values.map((_, i) => own[i * some.every]!);
  expect(away(chosen, some.values)).toBeLessThan(near);
  const norm = Math.sqrt(own.reduce((sum, value) => sum + value * value, 0));
  expect(Math.abs(norm / some.norm - 1)).toBeLessThan(near);
}

let wasm: Multiplier;
beforeAll(async () => {
  (globalThis as any).navigator ??= { hardwareConcurrency: 1 };
  wasm = (await JaxMultiplier.open("wasm"))!;
});

describe.each(["script", "wasm"])("networks agree with PyTorch to 1e-4 (%s)", (device) => {
  test.each(golden.networks as any[])("$model.name on $shape", async (row: any) => {
    const multiplier = device === "wasm" ? wasm : new ScriptMultiplier();
    const network = new Network(row.model, row.shape, row.classes, row.loss_name, multiplier);
    const each = row.shape.reduce((product: number, side: number) => product * side, 1);
    const parameters = await numbers(TENSOR.weights, row.model.size, 0.125);
    const x = network.arrange(await numbers(TENSOR.records, golden.batch * each, 1), golden.batch);
    const y = Array.from(await words(TENSOR.labels, golden.batch), (word) => word % row.classes);
    const batch = network.batch(new Records(each, x, y), [...y.keys()]);

    expect(away(await network.scores(parameters, batch), row.scores)).toBeLessThan(1e-4);
    const { loss, gradient } = await network.gradient(network.matrices(parameters), batch);
    expect(Math.abs(loss / row.loss - 1)).toBeLessThan(1e-5);
    compare(gradient, row.gradient);
    const [sum, norms] = [new Float64Array(row.model.size), new Float64Array(golden.batch)];
    for (const i of y.keys()) {
      const alone = await network.gradient(network.matrices(parameters), network.batch(new Records(each, x, y), [i]));
      const whole = new Float64Array(row.model.size);
      norms[i] = wholeGradient(alone.gradient, row.clip, STEPS, whole);
      expect(whole.every(Number.isInteger)).toBe(true);
      expect(whole.reduce((total, value) => total + value * value, 0)).toBeLessThanOrEqual(STEPS ** 2);
      whole.forEach((value, j) => (sum[j]! += (value * row.clip) / STEPS));
    }
    expect(away(norms, row.norms)).toBeLessThan(1e-4);
    compare(sum, row.clipped, 5e-4); // what is too long once rounded is shortened by 2^-12, on one side or the other
  });
});

test("a gradient that is not finite counts as zero", () => {
  const whole = new Float64Array(3).fill(7);
  expect(wholeGradient(Float64Array.of(1, Infinity, NaN), 1, STEPS, whole)).not.toBeLessThan(Infinity);
  expect([...whole]).toEqual([0, 0, 0]);
});
