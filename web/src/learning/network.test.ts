import { beforeAll, describe, expect, test } from "vitest";
import { TENSOR, golden, numbers, words } from "../golden.ts";
import { JaxMultiplier, type Multiplier, ScriptMultiplier } from "./multiply.ts";
import { Network } from "./network.ts";

/** The largest difference over the largest magnitude. */
export function away(own: ArrayLike<number>, theirs: readonly number[]): number {
  expect(own.length).toBe(theirs.length);
  const largest = theirs.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-30);
  return theirs.reduce((most, value, i) => Math.max(most, Math.abs(own[i]! - value)), 0) / largest;
}

function compare(own: Float64Array, some: { every: number; values: number[]; norm: number }): void {
  const chosen = some.values.map((_, i) => own[i * some.every]!);
  expect(away(chosen, some.values)).toBeLessThan(1e-4);
  const norm = Math.sqrt(own.reduce((sum, value) => sum + value * value, 0));
  expect(Math.abs(norm / some.norm - 1)).toBeLessThan(1e-4);
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
    const batch = network.batch(x, y, [...y.keys()]);

    expect(away(await network.scores(parameters, batch), row.scores)).toBeLessThan(1e-4);
    const { loss, gradient } = await network.gradient(parameters, batch);
    expect(Math.abs(loss / row.loss - 1)).toBeLessThan(1e-5);
    compare(gradient, row.gradient);
    const clipped = await network.clippedSum(parameters, batch, row.clip);
    expect(away(clipped.norms, row.norms)).toBeLessThan(1e-4);
    compare(clipped.sum, row.clipped);
  });
});

test("a record without a finite gradient counts as zero in a clipped sum", async () => {
  const [row] = golden.networks;
  const network = new Network(row.model, row.shape, row.classes, row.loss_name, new ScriptMultiplier());
  const parameters = await numbers(TENSOR.weights, row.model.size, 0.125);
  const x = await numbers(TENSOR.records, 3 * 64, 1);
  const alone = await network.clippedSum(parameters, network.batch(x, [0, 1, 2], [0, 2]), 1);
  x[64 + 5] = Infinity;
  const beside = await network.clippedSum(parameters, network.batch(x, [0, 1, 2], [0, 1, 2]), 1);
  expect([...beside.sum]).toEqual([...alone.sum]);
  expect(beside.clipped).toBe(3);
});

test("no record moves a clipped sum by more than the clipping norm", async () => {
  const [row] = golden.networks;
  const network = new Network(row.model, row.shape, row.classes, row.loss_name, new ScriptMultiplier());
  const parameters = await numbers(TENSOR.weights, row.model.size, 0.125);
  const x = (await numbers(TENSOR.records, 40 * 64, 1)).map((value) => 2 * value);
  const y = Array.from({ length: 40 }, (_, i) => i % 10);
  const all = await network.clippedSum(parameters, network.batch(x, y, [...y.keys()]), 0.5);
  for (let left = 0; left < 40; left += 7) {
    const others = await network.clippedSum(parameters, network.batch(x, y, [...y.keys()].filter((i) => i !== left)), 0.5);
    const moved = Math.sqrt(all.sum.reduce((sum, value, i) => sum + (value - others.sum[i]!) ** 2, 0));
    expect(moved).toBeLessThanOrEqual(0.5);
    expect(moved).toBeGreaterThan(0.499);
  }
});
