/**
 * Local training from a plan's parameters: plain, or DP-SGD on Poisson batches (Abadi et al. 2016, Algorithm 1) in whole
 * numbers (docs/bits.md).
 */
import { gridFor } from "../bits/discrete.ts";
import type { Words } from "../bits/keystream.ts";
import type { PlainTraining, PrivateTraining, Task } from "../wire/task.ts";
import { order, poissonSample, poissonSamples, portions, wholeNoise } from "./draws.ts";
import { LinearHead } from "./linear_head.ts";
import type { Gradient, Network } from "./network.ts";
import { Descent } from "./optimiser.ts";
import type { Records } from "./records.ts";
import { SUM_BITS, reduce, wholeGradient, wrapped } from "./whole.ts";

/** What a step is: making features of a record, or learning. */
export type Doing = "features" | "training";

/** Called after every step; an error thrown by it ends the training. */
export type Progress = (step: number, steps: number, doing?: Doing) => void;

export interface Trained {
  /** null where plain training stopped being finite, or there was nothing to train on: then nothing has changed */
  parameters: Float32Array | null;
  /** for the owner's eyes alone: where the same steps would have led without their noise; null where training adds none */
  clear: Float32Array | null;
  /** mean loss over all records trained on: for the owner's eyes alone */
  loss: number | null;
  /** records that gradients were computed of */
  seen: number;
  /** the order in which records are taken up, to be kept where the task takes portions of them */
  order: Int32Array | null;
}

export async function train(
  task: Task, network: Network, parameters: Float32Array, records: Records, round: number, words: Words,
  progress: Progress, kept: Int32Array | null = null,
): Promise<Trained> {
  const { training } = task;
  if (training.kind === "sums") throw new Error("sums have no network");
  if (training.kind === "private") return trainPrivately(training, task, network, parameters, records, round, words, progress);
  const { chosen, order: taken } = await takenUp(training, records.count, round, words, kept);
  const trained = await trainPlainly(training, task, network, parameters, { records, chosen }, round, words, progress);
  return { ...trained, order: taken };
}

/** The task with a participant's own noise multiplier in the place of its own; null: none. */
export function withNoise(task: Task, noise: number | null): Task {
  return noise === null || task.training.kind !== "private" ? task : { ...task, training: { ...task.training, noise } };
}

async function trainPrivately(
  training: PrivateTraining, task: Task, network: Network, parameters: Float32Array, records: Records, round: number,
  words: Words, progress: Progress,
): Promise<Trained> {
  let loss = 0;
  let seen = 0;
  const add = addition(training, task, network);
  const { after, clear } = await descended(training, task, parameters, round, words, async (now, sum, t) => {
    for await (const sample of poissonSamples(words, t, records.count, training.threshold)) {
      loss += await add(sum, now, records, sample);
      seen += sample.length;
      reduce(sum);
    }
  }, progress);
  return { parameters: after, clear, loss: seen ? loss / seen : null, seen, order: null };
}

/** Adds what some records, at most 2^20, move a step's sum by, in whole numbers of grid steps; gives back the sum of their losses. */
type Addition = (sum: Float64Array, parameters: Float32Array, records: Records, sample: number[]) => Promise<number>;

/** What a record adds is a function of it and of the parameters alone: what is beside it changes no bit. */
export function addition(training: PrivateTraining, task: Task, network: Network): Addition {
  const steps = gridFor(training.noise, training.resolution).clip;
  const head = LinearHead.of(task, training.clip, steps);
  if (head) return async (sum, parameters, records, sample) => head.addTo(sum, parameters, records, sample);
  const whole = new Float64Array(network.size);
  return async (sum, parameters, records, sample) => {
    let losses = 0;
    const at = network.matrices(parameters);
    for (const record of sample) {
      const found = await gradientOrNull(() => network.gradient(at, network.batch(records, [record])));
      if (found === null) continue;
      wholeGradient(found.gradient, training.clip, steps, whole);
      for (let k = 0; k < sum.length; k += 1) sum[k]! += whole[k]!;
      losses += found.loss;
    }
    return losses;
  };
}

/** What is computed of one record; null where that fails: an error must not end the training on all others, which would show it. */
async function gradientOrNull(compute: () => Promise<Gradient>): Promise<Gradient | null> {
  try {
    return await compute();
  } catch {
    return null;
  }
}

/** Descends along noisy sums of whole gradients; `add` adds those of step t's batch, at the parameters of now. */
async function descended(
  { optimiser, steps, clip, noise, expected_batch, resolution }: PrivateTraining, task: Task, parameters: Float32Array, round: number,
  words: Words, add: (now: Float32Array, sum: Float64Array, t: number) => Promise<void>, progress: Progress,
): Promise<{ after: Float32Array; clear: Float32Array | null }> {
  const grid = gridFor(noise, resolution);
  const unit = clip / grid.clip / expected_batch;
  const begun = (): Descent => new Descent(optimiser, parameters.slice(), task.model, (round - 1) * steps);
  const [descent, alone] = [begun(), begun()];
  for (let t = 0; t < steps; t += 1) {
    const sum = new Float64Array(parameters.length);
    await add(descent.parameters, sum, t);
    const drawn = await wholeNoise(words, t, sum.length, grid.noise);
    alone.step(sum.map((value) => value * unit), t);
    for (let i = 0; i < sum.length; i += 1) sum[i] = Math.fround(wrapped(sum[i]! + drawn[i]!, SUM_BITS) * unit);
    descent.step(sum, t);
    progress(t + 1, steps);
  }
  // Nothing has changed where this stops being finite. The loss, which has no noise, must not decide about that.
  return { after: finite(descent.parameters) ?? parameters, clear: finite(alone.parameters) };
}

/** This round's records, for tasks that take a portion of them at a time. */
async function takenUp(
  training: PlainTraining, count: number, round: number, words: Words, kept: Int32Array | null,
): Promise<{ chosen: Int32Array; order: Int32Array | null }> {
  const all = Int32Array.from({ length: count }, (_, i) => i);
  if (training.records === null || count === 0) return { chosen: all, order: null };
  const { portion, sampling } = training.records;
  const taken = portion ? (kept?.length === count ? kept : await portions(words, count)) : all;
  const size = Math.min(portion || count, count);
  let chosen = Int32Array.from({ length: size }, (_, i) => taken[((round - 1) * size + i) % count]!);
  if (sampling < 1) {
    const sample = await poissonSample(words, 0, size, Math.floor(sampling * 2 ** 32));
    chosen = Int32Array.from(sample, (i) => chosen[i]!);
  }
  return { chosen, order: portion ? taken : null };
}

/** The batch sizes of one epoch over so many records. */
function batches(training: PlainTraining, records: number): number[] {
  const size = Math.min(training.batch || records, records);
  const full = Array<number>(Math.floor(records / size)).fill(size);
  const rest = records % size;
  return rest && !training.drop_last ? [...full, rest] : full;
}

function totalSteps(training: PlainTraining, records: number): number {
  return training.steps ?? training.epochs! * batches(training, records).length;
}

/** Where the decay of the learning rate goes on: after the steps of all earlier rounds. */
function firstStep(training: PlainTraining, records: number, round: number): number {
  if (!training.optimiser.decay || training.records?.schedule === "restarts") return 0;
  const { portion = 0, sampling = 1 } = training.records ?? {};
  const usual = portion ? Math.max(1, Math.ceil(sampling * portion)) : records;
  return (round - 1) * totalSteps(training, usual);
}

async function trainPlainly(
  training: PlainTraining, task: Task, network: Network, parameters: Float32Array,
  given: { records: Records; chosen: Int32Array }, round: number, words: Words, progress: Progress,
): Promise<Trained> {
  const { records, chosen } = given;
  const count = chosen.length;
  if (count === 0) return { parameters: null, clear: null, loss: null, seen: 0, order: null };
  const steps = totalSteps(training, count);
  const sizes = batches(training, count);
  const descent = new Descent(training.optimiser, parameters.slice(), task.model, firstStep(training, count, round));
  let ordered: ArrayLike<number> = chosen;
  let [loss, seen, at] = [0, 0, 0];
  for (let t = 0; t < steps; t += 1) {
    const place = t % sizes.length;
    if (place === 0) {
      at = 0;
      if (training.shuffle) ordered = (await order(words, t / sizes.length, count)).map((i) => chosen[i]!);
    }
    const members = Array.prototype.slice.call(ordered, at, at + sizes[place]!) as number[];
    at += members.length;
    const found = await meanGradient(network, descent.parameters, records, members);
    descent.step(found.gradient, t);
    loss += found.loss * members.length;
    seen += members.length;
    progress(t + 1, steps);
  }
  const result = Number.isFinite(loss) ? finite(descent.parameters) : null;
  return { parameters: result, clear: null, loss: loss / seen, seen, order: null };
}

/** How many records of a plain batch are computed together: more would need too much memory for their columns. */
const AT_ONCE = 256;

async function meanGradient(network: Network, parameters: Float32Array, records: Records, members: number[]): Promise<Gradient> {
  const at = network.matrices(parameters);
  if (members.length <= AT_ONCE) return network.gradient(at, network.batch(records, members));
  const gradient = new Float64Array(network.size);
  let loss = 0;
  for (let first = 0; first < members.length; first += AT_ONCE) {
    const part = members.slice(first, first + AT_ONCE);
    const found = await network.gradient(at, network.batch(records, part));
    const share = part.length / members.length;
    for (let i = 0; i < gradient.length; i += 1) gradient[i]! += share * found.gradient[i]!;
    loss += share * found.loss;
  }
  return { loss, gradient };
}

function finite(parameters: Float32Array): Float32Array | null {
  return parameters.every((value) => Number.isFinite(value)) ? parameters : null;
}
