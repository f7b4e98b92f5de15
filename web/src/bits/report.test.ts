import { describe, expect, test } from "vitest";
import { TENSOR, fromHex, golden, numbers, stream, toHex } from "../golden.ts";
import { readPlan, readRequest, writeAnswer, writeResponse } from "../wire/frames.ts";
import type { Task } from "../wire/task.ts";
import { buildMechanism } from "./build.ts";
import { Gaussian, Laplace, Plain, TwoPoint, type ValueLoss } from "./mechanisms.ts";
import { makeBody } from "./report.ts";

const [first, second] = golden.pieces;
const layers = [{ name: "a", first: 0, size: first }, { name: "b", first, size: second }];
const task = (samples: Task["upload"]["samples"] = null) =>
  ({ upload: { what: "weights", values: first + second, layers, samples } }) as unknown as Task;

describe("whole reports as Python writes them for the same key", () => {
  test.each(golden.reports as any[])("$what", async (row: any) => {
    const plan = await readPlan(fromHex(row.plan_hex));
    const values = await numbers(TENSOR.values, first + second, 1);
    expect(plan.arrays.get("parameters")!.values).toEqual(values);
    const { body } = await makeBody(task(), row.mechanism, plan, values, 1, null, await stream());
    expect(toHex(body)).toBe(row.body_hex);
    expect(toHex(writeAnswer(plan, body))).toBe(row.answer_hex);
  });

  test.each(golden.reports as any[])("the page's own figure for what one value loses: $what", async (row: any) => {
    const { loss } = await buildMechanism(row.mechanism, layers);
    expect(loss.type).toBe(row.loss.type);
    for (const key of Object.keys(loss) as (keyof ValueLoss)[]) {
      if (key === "type" || loss.type === "Infinite") continue;
      const [own, stated] = [Number(loss[key]), row.loss[key]];
      if (stated === 0) expect(own).toBe(0);
      else expect(Math.abs(own / stated - 1)).toBeLessThan(key as string === "tau" || key as string === "eta" ? 1e-6 : 1e-12);
    }
  });

  test.each(golden.reports as any[])("are read as the server reads them: $what", async (row: any) => {
    const plan = await readPlan(fromHex(row.plan_hex));
    const values = await numbers(TENSOR.values, first + second, 1);
    const { body, read } = await makeBody(task(), row.mechanism, plan, values, 1, null, await stream());
    const mechanism = await buildMechanism(row.mechanism, layers, plan);
    expect(read).toHaveLength(values.length);
    if (mechanism instanceof Plain) return expect(read).toEqual(values);
    const box = (mechanism as Laplace).box;
    const at = (all: Float32Array, i: number) => all[all.length === 1 ? 0 : i]!;
    const sides = read.map((value, i) => (value - at(box.centre, i)) / at(box.radius, i));
    if (mechanism instanceof Laplace || mechanism instanceof Gaussian) {
      const outputs = await mechanism.outputs(values, await stream());
      return outputs.forEach((output, i) => expect(sides[i]).toBeCloseTo(output / mechanism.steps, 4));
    }
    const bits = Array.from(sides, (_, i) => (body[i >> 3]! >> (i & 7)) & 1);
    const away = mechanism instanceof TwoPoint ? 2 ** 31 / (2 ** 31 - mechanism.tMin) : 1;
    return bits.forEach((bit, i) => expect(sides[i]).toBeCloseTo(bit ? away : -away, 4));
  });

  test("the number of records, with noise, in the first report and ever after", async () => {
    const { limit, mechanism, announced } = golden.counts;
    const [none] = golden.reports;
    const plan = { ...(await readPlan(fromHex(none.plan_hex))), round: 1 };
    const values = await numbers(TENSOR.values, first + second, 1);
    const samples = { kind: "noisy" as const, limit, what: "count", mechanism };
    for (const [records, [count]] of Object.entries(announced) as [string, [number]][]) {
      const body = await makeBody(task(samples), { name: "none" }, plan, values, Number(records), null, await stream());
      expect(body.announced).toBe(count);
      expect(new DataView(body.body.buffer).getUint32(0, true)).toBe(count);
      expect(toHex(body.body.subarray(4))).toBe(none.body_hex);
      const later = await makeBody(task(samples), { name: "none" }, { ...plan, round: 5 }, values, 999, count, await stream());
      expect(toHex(later.body)).toBe(toHex(body.body));
    }
    const missed = await makeBody(task(samples), { name: "none" }, { ...plan, round: 2 }, values, 7, null, await stream());
    expect(new DataView(missed.body.buffer).getUint32(0, true)).toBe(limit / 2);
    expect(missed.announced).toBeNull();
  });

  test("a table that is not that of its rate is refused", async () => {
    const row = golden.reports.find((each: any) => each.what === "laplace");
    const forged = structuredClone(row.mechanism);
    forged.rate[0] = String(BigInt(forged.rate[0]) * 2n);
    await expect(buildMechanism(forged, layers)).rejects.toThrow(/is not that of docs\/bits.md/);
    expect(await buildMechanism(row.mechanism, layers)).toBeInstanceOf(Laplace);
  });
});

describe("frames", () => {
  const { plan_hex, digest_hex, request_hex, declined_hex, report_hex } = golden.frames;

  test("a request with a plan is read, names outside ASCII included", async () => {
    const request = readRequest(fromHex(request_hex));
    expect([request.what, request.step, toHex(request.payload)]).toEqual([3, "report", plan_hex]);
    const plan = await readPlan(request.payload);
    expect([plan.federation, plan.round, toHex(plan.hash.subarray(0, 16))]).toEqual(["naïve 🔒", 7, digest_hex]);
    expect([...plan.arrays.get("parameters")!.values]).toEqual([1.5, -2]);
    expect(plan.arrays.get("a")).toEqual({ shape: [1, 2], values: Float32Array.of(1, 1) });
  });

  test("responses are written as Python writes them", async () => {
    const plan = await readPlan(fromHex(plan_hex));
    const declined = writeResponse({ fine: false, reason: "the budget is spent", payload: writeAnswer(plan, null) });
    expect(toHex(declined)).toBe(declined_hex);
    expect(toHex(writeResponse({ fine: true, payload: writeAnswer(plan, Uint8Array.of(1, 2, 255)) }))).toBe(report_hex);
  });

  test("every cut and every other header is refused", async () => {
    const bytes = fromHex(plan_hex);
    for (let length = 0; length < bytes.length; length += 1) {
      await expect(readPlan(bytes.slice(0, length))).rejects.toThrow(/plan|message/);
    }
    const spaced = bytes.slice();
    spaced[8 + 1] = 0x20; // a space where the header's first key begins
    await expect(readPlan(spaced)).rejects.toThrow();
    expect(() => readRequest(fromHex(request_hex.replace(/^5351/, "5352")))).toThrow(/not a request/);
    expect(() => readRequest(fromHex(request_hex.replace(/^535102/, "535103")))).toThrow(/version 3/);
  });
});
