import "fake-indexeddb/auto";
import { createHash } from "node:crypto";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { TENSOR, fromHex, golden, numbers, signed, stream, tasks, toHex, words } from "../golden.ts";
import { type Job, TrainingRoom } from "../learning/room.ts";
import { Scattering } from "../learning/scattering.ts";
import { SecondMoments } from "../learning/second_moments.ts";
import { wrapped } from "../learning/whole.ts";
import { ANSWER_BYTES, canonical } from "../wire/frames.ts";
import { readTask } from "../wire/task.ts";
import { Ledger } from "./ledger.ts";
import { noisySums, readSums } from "./noisy_sums.ts";
import { PrivacyRoom, type Ruling } from "./privacy.ts";
import { ownReleases } from "./releases.ts";
import type { Choice } from "./terms.ts";

let ledger: Ledger;
let count = 0;

beforeEach(async () => {
  ledger = await Ledger.open(`sums ${(count += 1)}`);
});
afterEach(() => ledger.close());

const { federation, rows, records } = golden.noisy_sums;
const personal = () => structuredClone(tasks[federation]);
const digits = () => structuredClone(tasks["proven-digits"]);
const choice = (limit = 8): Choice => ({ budget: { limit, delta: 1e-5, basis: "proven", adjacency: "record-add-remove" } });
const envelope = (task: any, plan: Uint8Array, round: number) => signed(plan, { federation: task.federation, round, terms: task.terms });

async function privacyRoom(task: any, client: number, limit?: number): Promise<PrivacyRoom> {
  const room = new PrivacyRoom(ledger, stream);
  await room.open({ task, choice: choice(limit), own: true });
  await room.welcome(client);
  return room;
}

async function trainingRoom(task: any, many: number, progress = () => {}): Promise<TrainingRoom> {
  const room = new TrainingRoom(progress);
  await room.open(task);
  const labels = (await words(TENSOR.labels, records)).map((word) => word % 10);
  room.take((await numbers(TENSOR.records, records * 64, 1)).subarray(0, many * 64), Int32Array.from(labels.subarray(0, many)));
  return room;
}

type Train = Extract<Ruling, { kind: "train" }>;
const jobOf = ({ round, parameters, noise, order, summing }: Train): Job => ({ round, parameters, noise, order, summing });

async function judged(room: PrivacyRoom, task: any, plan: Uint8Array, round: number): Promise<Train> {
  const ruling = await room.judge("report", envelope(task, plan, round));
  if (ruling.kind !== "train") throw new Error(JSON.stringify(ruling));
  return ruling;
}

/** A plan as Python writes it. */
function planOf(task: any, round: number, arrays: Record<string, { shape: number[]; values: ArrayLike<number> }>): Uint8Array<ArrayBuffer> {
  const names = Object.keys(arrays).sort();
  const shapes = Object.fromEntries(names.map((name) => [name, arrays[name]!.shape]));
  const header = new TextEncoder().encode(canonical({ arrays: shapes, federation: task.federation, round, settings: {} }));
  const values = names.flatMap((name) => [...Array.from(arrays[name]!.values)]);
  const bytes = new Uint8Array(8 + header.length + 4 * values.length);
  bytes.set([0x53, 0x50, 2, 0]);
  const view = new DataView(bytes.buffer);
  view.setUint32(4, header.length, true);
  bytes.set(header, 8);
  values.forEach((value, i) => view.setFloat32(8 + header.length + 4 * i, value, true));
  return bytes;
}

const gradientPlan = (task: any, round = 2, change: Record<string, number> = {}) => {
  const { maps } = task.training;
  return planOf(task, round, {
    parameters: { shape: [task.model.size], values: new Float32Array(task.model.size) },
    left: { shape: [maps, maps], values: Float32Array.from({ length: maps * maps }, (_, i) => change["left"] ?? (i % (maps + 1) ? 0 : 65536)) },
    centre: { shape: [maps], values: new Float32Array(maps).fill(change["centre"] ?? 0) },
  });
};

describe("whole reports as Python writes them for the same key, records and plan", () => {
  test.each(rows as any[])("round $round of client $client with $records records", async (row: any) => {
    const task = personal();
    const privacy = await privacyRoom(task, row.client);
    const training = await trainingRoom(task, row.records);
    const ruling = await judged(privacy, task, fromHex(row.plan_hex), row.round);
    const { sums } = await training.train(jobOf(ruling));
    const { answer, insight } = await privacy.release(sums, row.records, null);
    expect(insight.clear).toEqual(Float32Array.from(sums!));
    expect(insight.sent).toHaveLength(sums!.length);
    if (row.records > 0) expect(insight.sent).not.toEqual(insight.clear);
    const body = answer.subarray(ANSWER_BYTES);
    expect(body.length).toBe(row.bytes);
    expect(toHex(body.subarray(0, 64))).toBe(row.first_hex);
    expect(createHash("sha256").update(body).digest("hex")).toBe(row.sha256);
  });

  test.each(rows.filter((row: any) => row.records === 0) as any[])("where training failed, round $round is that of no records", async (row: any) => {
    const privacy = await privacyRoom(personal(), row.client);
    await judged(privacy, personal(), fromHex(row.plan_hex), row.round);
    const { answer } = await privacy.release(null, 9, null);
    expect(createHash("sha256").update(answer.subarray(ANSWER_BYTES)).digest("hex")).toBe(row.sha256);
    expect(await privacy.ledger()).toHaveLength(1);
  });
});

describe("the noise of sums", () => {
  const stage = { rounds: [1, 1] as [number, number], what: "x", values: 3, noise: 4, modulus: 8, sensitivity: 1 };
  const valuesOf = async (sums: Float64Array | null) => [...(await noisySums(stage, sums, await stream()))].map((byte) => byte - 128);

  test("is added modulo a power of two, around zero", async () => {
    const noise = await valuesOf(null);
    expect(await valuesOf(Float64Array.of(5, -5, 2 ** 40))).toEqual([5, -5, 0].map((sum, i) => wrapped(sum + noise[i]!, 8)));
    expect([127, 128, -128, -129, 256, -(2 ** 45) + 3].map((value) => wrapped(value, 8))).toEqual([127, -128, -128, 127, 0, 3]);
  });

  test.each([8, 40, 48])("is added to sums of any size, modulo 2^%d", async (modulus) => {
    const wide = { ...stage, noise: 30, modulus };
    const sums = Float64Array.of(2 ** 51 + 1, -(2 ** 53) + 1, 2 ** 60 + 2 ** 10);
    const noise = readSums({ ...wide, modulus: 48 }, await noisySums({ ...wide, modulus: 48 }, null, await stream()));
    const expected = Array.from(sums, (sum, i) => Number(BigInt.asIntN(modulus, BigInt(sum) + BigInt(noise[i]!))));
    expect([...readSums(wide, await noisySums(wide, sums, await stream()))]).toEqual(expected);
  });

  test("stays beside the sums of two million records: one more moves the report by its own part alone", async () => {
    const most = 32_767;
    const wide = { ...stage, values: 2, noise: 25, modulus: 48 };
    const moments = new SecondMoments(1, 1, most);
    moments.add(new Int16Array(2_097_600).fill(most), 0, 2_097_600);
    const before = moments.sums;
    const alone = new SecondMoments(1, 1, most);
    for (const one of [moments, alone]) one.add([most - 1]);
    const reports = await Promise.all([before, moments.sums].map(async (sums) => readSums(wide, await noisySums(wide, sums, await stream()))));
    const noise = readSums(wide, await noisySums(wide, null, await stream()));
    const total = BigInt.asIntN(48, 2_097_600n * BigInt(most) ** 2n);
    expect([...reports[0]!]).toEqual([...noise].map((drawn) => Number(BigInt.asIntN(48, total + BigInt(drawn)))));
    expect([...reports[1]!].map((value, i) => wrapped(value - reports[0]![i]!, 48))).toEqual([...alone.sums]);
  });

  test("is not added to another number of values", async () => {
    expect([...readSums(stage, await noisySums(stage, null, await stream()))]).toEqual(await valuesOf(null));
    await expect(noisySums(stage, new Float64Array(4), await stream())).rejects.toThrow(/4 sums where 3/);
  });
});

describe("what a page states of its sums", () => {
  test("is what the server's ledger counts, for every strength", async () => {
    for (const task of [digits(), personal()]) {
      for (const strength of task.strengths) {
        const [client] = strength.clients;
        const { adjacency, delta, epsilon } = strength.spending.at(-1);
        const budget = { limit: 8, delta, basis: "proven" as const, adjacency };
        const { perRound } = await new PrivacyRoom(ledger).outlook({ task, choice: { budget }, own: true }, { client });
        perRound.forEach((spent, k) => expect(spent / epsilon[k]).toBeCloseTo(1, 6));
      }
    }
  });

  test("is computed from the limits that it enforces", async () => {
    const task = digits();
    const { limits } = task.strengths[0].mechanism;
    const lossIn = async (round: number) => (await ownReleases(task, task.strengths[0], round, null))[0]!.guarantees[0]!.loss as any;
    expect((await lossIn(1)).sigma).toBeCloseTo(Math.sqrt(4 ** 25 - 1 / 12) / (Math.SQRT2 * limits.unit ** 2), 9);
    expect((await lossIn(2)).sigma).toBeCloseTo(Math.sqrt(4 ** 16 - 1 / 12) / (limits.row * limits.residual), 9);
    expect(await lossIn(2)).toMatchObject({ type: "PoissonGaussian", q: 1, steps: 1 });
  });

  test.each([
    ["longer unit vectors", (m: any) => (m.limits.unit += 1), /moves "second moments/],
    ["longer rows", (m: any) => (m.limits.row += 1), /moves "gradient/],
    ["longer residuals", (m: any) => (m.limits.residual += 1), /moves "gradient/],
    ["a smaller sensitivity", (m: any) => (m.stages[1].sensitivity /= 2), /moves "gradient/],
    ["a larger sensitivity than stated", (m: any) => (m.stages[1].sensitivity *= 2), /are not those of the noise/],
    ["less noise", (m: any) => (m.stages[1].noise -= 1), /are not those of the noise/],
    ["other numbers of values", (m: any) => (m.stages[0].values += 1), /does not fit the features/],
    ["a gap between stages", (m: any) => (m.stages[1].rounds[0] = 3), /do not follow/],
    ["second moments twice", (m: any) => ((m.stages[0].rounds[1] = 2), (m.stages[1].rounds[0] = 3)), /does not fit/],
    ["rounds that nobody described", (m: any) => (m.stages[1].rounds[1] = 3), /do not cover/],
    ["a modulus beyond exact numbers", (m: any) => (m.stages[1].modulus = 60), /modulus/],
    ["no noise", (m: any) => (m.stages[1].noise = 0), /noise/],
    ["lengths that are not whole", (m: any) => (m.limits.row = 0.5), /limits.row/],
  ])("a task with %s is refused", async (_, change, why) => {
    const task = digits();
    change(task.strengths[0].mechanism);
    await expect(privacyRoom(task, 0)).rejects.toThrow(why);
  });

  test("noise that reaches no neighbour proves nothing", async () => {
    const task = digits();
    const [strength] = task.strengths;
    strength.mechanism.stages[1].sensitivity = 9 * 2 ** 16; // an exchange is beyond sixteen deviations
    for (const release of strength.releases) release.guarantees = [];
    const [added, replaced] = (await ownReleases(task, strength, 2, null))[0]!.guarantees;
    expect([added!.loss.type, replaced!.loss.type]).toEqual(["PoissonGaussian", "Infinite"]);
  });
});

describe("a task of sums", () => {
  test.each([
    ["other features", (t: any) => (t.training.extractor.kind = "oriented")],
    ["another number of maps", (t: any) => (t.training.maps = 8)],
    ["a bias beyond 1", (t: any) => (t.training.bias = 2)],
    ["another mechanism", (t: any) => (t.strengths[0].mechanism = { name: "none" })],
    ["a number of records beside them", (t: any) => (t.upload.samples = { kind: "noisy" })],
    ["a network of two layers", (t: any) => t.model.layers.push({ kind: "relu", name: "relu" })],
    ["plans without a whitening", (t: any) => delete t.plan.arrays.left],
    ["bare plans for ever", (t: any) => (t.plan.bare = 4)],
    ["columns of a table", (t: any) => (t.input.columns = [{ name: "age", low: null, high: null }])],
  ])("with %s is refused", (_, change) => {
    const task = digits();
    change(task);
    expect(() => readTask(task)).toThrow(/cannot take part/);
  });

  test.each([[256, true], [257, false], [2 ** 13 + 1, false]])("of %d classes is taken: %s; sums are exact up to 2^13", (count, taken) => {
    const task = digits();
    const size = count * (task.training.maps * task.training.cells + 1);
    task.classes = Array.from({ length: count }, (_, k) => String(k));
    task.model.layers.at(-1).outputs = count;
    const [weight, bias] = task.model.parameters;
    [weight.shape[0], weight.size] = [count, size - count];
    [bias.shape[0], bias.first, bias.size] = [count, size - count, count];
    [task.model.size, task.upload.values, task.plan.arrays.parameters] = [size, size, [size]];
    task.upload.layers = task.model.parameters.map(({ name, first, size }: any) => ({ name, first, size }));
    for (const { mechanism } of task.strengths) mechanism.stages.at(-1).values = size;
    if (taken) expect(() => readTask(task)).not.toThrow();
    else expect(() => readTask(task)).toThrow(/classes/);
  });

  test.each([["groups", 4], ["roots", 9], ["cells", 15]])("with %s = %d is refused when it is set up", async (key, value) => {
    const task = digits();
    task.training[key] = value;
    await expect(new TrainingRoom().open(task)).rejects.toThrow(/cannot take part/);
  });
});

describe("a plan of sums", () => {
  test("is judged by its round: none of it in the first, all of it after", async () => {
    const task = digits();
    const privacy = await privacyRoom(task, 0);
    const bare = planOf(task, 1, {});
    const asked = async (plan: Uint8Array, round: number) => (await privacy.judge("report", envelope(task, plan, round))).kind;
    expect(await asked(gradientPlan(task, 1), 1)).toBe("refused");
    expect(await asked(planOf(task, 2, {}), 2)).toBe("refused");
    expect(await asked(bare, 1)).toBe("train");
    expect(await asked(gradientPlan(task), 2)).toBe("train");
  });

  test.each([
    ["a matrix beyond reach", { left: 2 ** 17 }], ["a matrix that is not whole", { left: 0.5 }],
    ["a centre beyond reach", { centre: 2 ** 41 }], ["a centre that is not whole", { centre: 1.5 }],
  ])("with %s is refused, and costs nothing", async (_, change) => {
    const privacy = await privacyRoom(digits(), 0);
    expect(await privacy.judge("report", envelope(digits(), gradientPlan(digits(), 2, change), 2))).toMatchObject({ kind: "refused" });
    expect(await privacy.ledger()).toEqual([]);
  });

  test("that was answered gets the same bytes again, whatever was summed since", async () => {
    const task = digits();
    const privacy = await privacyRoom(task, 0);
    await judged(privacy, task, gradientPlan(task), 2);
    const { answer } = await privacy.release(new Float64Array(task.model.size).fill(7), 9, null);
    const again = await privacy.judge("report", envelope(task, gradientPlan(task), 2));
    expect(again).toMatchObject({ kind: "again", answer });
  });

  test("beyond the budget is declined", async () => {
    const task = digits();
    const privacy = await privacyRoom(task, 0, 0.5);
    await judged(privacy, task, planOf(task, 1, {}), 1);
    await privacy.release(null, 0, null);
    expect(await privacy.judge("report", envelope(task, gradientPlan(task), 2))).toMatchObject({ kind: "declined" });
  });
});

describe("the room that sums", () => {
  const whitening = (maps: number, factor = 1) => ({
    left: Float32Array.from({ length: maps * maps }, (_, i) => (i % (maps + 1) ? 0 : factor)), centre: new Float32Array(maps),
  });
  const job = (task: any, by: ReturnType<typeof whitening> | null): Job => ({
    round: by ? 2 : 1, parameters: new Float32Array(by ? task.model.size : 0), noise: null, order: null,
    summing: { limits: task.strengths[0].mechanism.limits, whitening: by },
  });

  test.each([
    ["second moments", null, 0], ["an ordinary plan", whitening(9, 65536), 1], ["huge weights", whitening(9), 1e30],
    ["a matrix of zeros", whitening(9, 0), 1],
    ["a centre far away", { left: new Float32Array(81).fill(65536), centre: new Float32Array(9).fill(2 ** 40) }, -3],
  ])("moves a sum by the same vector for a record, no longer than stated, whatever is beside it: %s", async (_, by, fill) => {
    const task = digits();
    const { mechanism } = task.strengths[0];
    const x = await numbers(TENSOR.records, 5 * 64, 1);
    x.set([NaN, Infinity, -Infinity], 64);
    x.fill(0, 128, 192);
    x.set(x.subarray(0, 64).map((value) => 1e30 * value), 192);
    const room = new TrainingRoom();
    await room.open(task);
    const weights = (await numbers(TENSOR.weights, task.model.size, 1)).map((value) => fill * value);
    const sumOf = async (chosen: number[]) => {
      room.take(Float32Array.from(chosen.flatMap((i) => [...x.subarray(64 * i, 64 * (i + 1))])), Int32Array.from(chosen));
      return (await room.train({ ...job(task, by), parameters: by ? weights : new Float32Array() })).sums!;
    };
    const all = [0, 1, 2, 3, 4];
    const whole = await sumOf(all);
    expect(await sumOf(all.toReversed())).toEqual(whole);
    for (const left of all) {
      const own = await sumOf([left]);
      const others = await sumOf(all.filter((i) => i !== left));
      expect(own.every(Number.isInteger)).toBe(true);
      expect(whole.map((value, i) => value - others[i]!)).toEqual(own.map((value) => value + 0)); // no -0
      expect(Math.hypot(...own)).toBeLessThanOrEqual(mechanism.stages[by ? 1 : 0].sensitivity);
    }
  });

  test("computes features once, and whitens once for each matrix", async () => {
    const task = digits();
    let records = 0;
    const room = await trainingRoom(task, 6, ((done: number, _: number, doing: string) => (records = doing === "features" ? done : records)) as any);
    const doneIn = async (given: Job) => {
      records = 0;
      await room.train(given);
      return records;
    };
    expect(await doneIn(job(task, null))).toBe(6);
    expect(await doneIn(job(task, whitening(9)))).toBe(6);
    expect(await doneIn(job(task, whitening(9)))).toBe(0);
    expect(await doneIn(job(task, whitening(9, 2)))).toBe(6);
  });

  test("stops in the middle of features, and goes on near where it was", async () => {
    const task = digits();
    const seen: number[] = [];
    const x = await numbers(TENSOR.records, 40 * 64, 1);
    const room: TrainingRoom = await trainingRoom(task, 0, ((step: number) => {
      seen.push(step);
      if (step === 36 && seen.length === 36) room.stop();
    }) as any);
    room.take(x, new Int32Array(40));
    await expect(room.train(job(task, null))).rejects.toThrow();
    const { sums, seen: records } = await room.train(job(task, null));
    expect(seen.slice(34, 39)).toEqual([35, 36, 33, 34, 35]); // with the 32 of the block before
    expect(records).toBe(40);
    const other = await trainingRoom(task, 0);
    other.take(x, new Int32Array(40));
    expect(sums).toEqual((await other.train(job(task, null))).sums);
  });

  test("forgets the whitened records of a plan that was stopped", async () => {
    const task = digits();
    const room = await trainingRoom(task, 9);
    const { sums } = await room.train(job(task, whitening(9)));
    const stopped = room.train(job(task, { ...whitening(9), centre: new Float32Array(9).fill(999) }));
    room.stop();
    await expect(stopped).rejects.toThrow();
    expect((await room.train(job(task, whitening(9)))).sums).toEqual(sums);
  });

  test.each([["second moments", null], ["gradients", whitening(9, 65536)]])("counts a record that fails as 0, and all others: %s", async (_, by) => {
    const task = digits();
    const { features } = Scattering.prototype;
    const room = await trainingRoom(task, 6);
    const failing = vi.spyOn(Scattering.prototype, "features").mockImplementation(function (this: Scattering, x, first) {
      if (first === 2 * 64) throw new RangeError("this record is beyond me");
      return features.call(this, x, first);
    });
    const { sums, seen } = await room.train(job(task, by));
    failing.mockImplementation(function (this: Scattering, x, first) {
      const found = features.call(this, x, first);
      return first === 2 * 64 ? found.fill(0) : found;
    });
    const without = await (await trainingRoom(task, 6)).train(job(task, by));
    failing.mockRestore();
    expect(seen).toBe(6);
    expect(sums!.some((sum) => sum !== 0)).toBe(true);
    expect(sums).toEqual(without.sums);
  });

  test("takes other records in the place of its own", async () => {
    const task = digits();
    const room = await trainingRoom(task, 9);
    await room.train(job(task, null));
    room.take(new Float32Array(), new Int32Array());
    expect((await room.train(job(task, null))).sums!.every((sum) => sum === 0)).toBe(true);
  });

  test("scores a drawing by the model and the whitening that the server hands out", async () => {
    const task = digits();
    const room = await trainingRoom(task, 1);
    const { size } = task.model;
    const model = new Float32Array(size + 9 + 81);
    model.set(whitening(9).left, size + 9);
    const record = await numbers(TENSOR.records, 64, 1);
    expect((await room.predict(model, record)).map((share) => share.toFixed(6))).toEqual(Array(10).fill("0.100000"));
    model[size - 10 + 3] = 40; // the bias of the fourth class, times 0.1
    expect((await room.predict(model, record))[3]).toBeCloseTo(Math.exp(4) / (Math.exp(4) + 9), 5);
  });
});
