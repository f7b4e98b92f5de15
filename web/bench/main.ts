/** Trains the same network on the same made-up records: in the page's own training worker, and in TensorFlow.js. */
import { Keystream } from "../src/bits/keystream.ts";
import { JaxMultiplier } from "../src/learning/multiply.ts";
import { Network } from "../src/learning/network.ts";
import { Records } from "../src/learning/records.ts";
import type { TrainingRoom } from "../src/learning/room.ts";
import type { Layer, PlainTraining, Task } from "../src/wire/task.ts";
import { connect } from "../src/workers/rpc.ts";

export interface Speed {
  samplesPerSecond: number;
  device: string;
  threads: number;
}

interface Given {
  x: Float32Array<ArrayBuffer>;
  y: Int32Array<ArrayBuffer>;
  parameters: Float32Array<ArrayBuffer>;
}

const RECORDS = 320;
const FEWEST_PASSES = 5;

function made({ input, classes, model }: Task): Given {
  const each = input.shape.reduce((product, side) => product * side, 1);
  const x = Float32Array.from({ length: RECORDS * each }, () => Math.random() - 0.5);
  const y = Int32Array.from({ length: RECORDS }, (_, i) => i % classes.length);
  return { x, y, parameters: Float32Array.from({ length: model.size }, () => 0.1 * (Math.random() - 0.5)) };
}

/** The page's own training. */
async function page(task: Task, seconds: number): Promise<Speed> {
  const worker = new Worker(new URL("../src/workers/training.worker.ts", import.meta.url), { type: "module" });
  const { remote, close } = connect<Pick<TrainingRoom, "open" | "take" | "train">>(worker);
  const { device, threads } = await remote.open(task);
  const { x, y, parameters } = made(task);
  await remote.take(x, y);
  const job = { round: 1, parameters, noise: null, order: null, summing: null };
  await remote.train(job);
  let [best, taken] = [0, 0];
  while (taken < seconds) {
    const outcome = await remote.train(job);
    best = Math.max(best, outcome.seen / outcome.seconds);
    taken += outcome.seconds;
  }
  close();
  return { samplesPerSecond: best, device, threads };
}

function plainOf({ training }: Task): PlainTraining {
  if (training.kind !== "plain") throw new Error("this benchmark takes tasks of plain training");
  return training;
}

/** The same network trained privately: in whole numbers, one record at a time but for linear models. */
function privately(task: Task, seconds: number): Promise<Speed> {
  const { optimiser } = plainOf(task);
  const rate = 0.1;
  const threshold = Math.floor(rate * 2 ** 32);
  const training = { kind: "private" as const, optimiser, clip: 1, noise: 1, rate, threshold, expected_batch: rate * RECORDS, steps: 5, resolution: 20 };
  return page({ ...task, training }, seconds);
}

/** A private head's records and plan, bytes as base64. */
interface HeadJob {
  task: Task;
  x: string;
  y: string;
  parameters: string;
  left: string;
  centre: string;
}

/** Seconds of each part of a private head's work, the best of some passes, and SHA-256 of both sums. */
interface HeadTimes {
  seconds: { features: number; moments: number; whitening: number; gradient: number };
  sha256: string[];
}

const bytes = (text: string): ArrayBuffer => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;

/** The private head over public features in the page's own training worker; what is made once takes the first call longer than the next. */
async function head(job: HeadJob, seconds: number): Promise<HeadTimes> {
  const worker = new Worker(new URL("../src/workers/training.worker.ts", import.meta.url), { type: "module" });
  const { remote, close } = connect<Pick<TrainingRoom, "open" | "take" | "train">>(worker);
  await remote.open(job.task);
  const [x, y, parameters] = [new Float32Array(bytes(job.x)), new Int32Array(bytes(job.y)), new Float32Array(bytes(job.parameters))];
  const whitening = { left: new Float32Array(bytes(job.left)), centre: new Float32Array(bytes(job.centre)) };
  const { mechanism } = job.task.strengths[0]!;
  if (mechanism.name !== "noisy-sums") throw new Error("this benchmark takes tasks of sums");
  const round = (by: typeof whitening | null) =>
    remote.train({ round: 1, parameters, noise: null, order: null, summing: { limits: mechanism.limits, whitening: by } });
  const best = { features: Infinity, moments: Infinity, whitening: Infinity, gradient: Infinity };
  const note = (name: keyof typeof best, taken: number) => (best[name] = Math.min(best[name], taken));
  const hash = async (sums: Float64Array) =>
    Array.from(new Uint8Array(await crypto.subtle.digest("SHA-256", sums as Float64Array<ArrayBuffer>)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  let sha256: string[] = [];
  const begun = performance.now();
  for (let pass = 0; pass < FEWEST_PASSES || performance.now() - begun < 1000 * seconds; pass += 1) {
    await remote.take(x.slice(), y.slice());
    note("features", (await round(null)).seconds);
    const moments = await round(null);
    note("moments", moments.seconds);
    note("whitening", (await round(whitening)).seconds);
    const gradient = await round(whitening);
    for (let k = 0; k < 10; k += 1) note("gradient", (await round(whitening)).seconds);
    sha256 = [await hash(moments.sums!), await hash(gradient.sums!)];
  }
  close();
  return { seconds: { ...best, features: best.features - best.moments, whitening: best.whitening - best.gradient }, sha256 };
}

/** The same layers in TensorFlow.js, on the faster of its devices. */
async function tensorflow(task: Task, seconds: number): Promise<Speed> {
  const found: Speed[] = [];
  for (const device of ["cpu", "webgl"]) found.push(await tensorflowOn(device, task, seconds / 2));
  return found.reduce((best, speed) => (speed.samplesPerSecond > best.samplesPerSecond ? speed : best));
}

async function tensorflowOn(device: string, task: Task, seconds: number): Promise<Speed> {
  const tf = await import("@tensorflow/tfjs");
  const none = { samplesPerSecond: 0, device, threads: 1 };
  if (!(await tf.setBackend(device).catch(() => false))) return none;
  await tf.ready();
  const { input, classes } = task;
  const training = plainOf(task);
  const [channels, height = 1, width = 1] = input.shape;
  const model = tf.sequential();
  model.add(tf.layers.inputLayer({ inputShape: [height, width, channels!] }));
  for (const layer of task.model.layers) model.add(layerOf(layer));
  const optimiser = tf.train.sgd(training.optimiser.lr);
  const { batch } = training;
  const { x, y } = made(task);
  const each = channels! * height * width;
  const step = () =>
    tf.tidy(() => {
      const records = tf.tensor4d(x.subarray(0, batch * each), [batch, height, width, channels!]);
      const labels = tf.oneHot(tf.tensor1d(y.subarray(0, batch), "int32"), classes.length);
      optimiser.minimize(() => tf.losses.softmaxCrossEntropy(labels, model.apply(records, { training: true }) as never));
    });
  step();
  await tf.nextFrame();
  const begun = performance.now();
  let best = 0;
  while (performance.now() - begun < 1000 * seconds) {
    const started = performance.now();
    step();
    await model.layers.at(-1)!.getWeights()[0]!.data(); // waits until it is computed
    best = Math.max(best, (1000 * batch) / (performance.now() - started));
  }
  return { samplesPerSecond: best, device: tf.getBackend(), threads: 1 };

  function layerOf(layer: Layer) {
    switch (layer.kind) {
      case "flatten":
        return tf.layers.flatten();
      case "dense":
        return tf.layers.dense({ units: layer.outputs });
      case "conv":
        return tf.layers.conv2d({ filters: layer.outputs, kernelSize: layer.kernel, padding: layer.padding ? "same" : "valid" });
      case "max-pool":
        return tf.layers.maxPooling2d({ poolSize: layer.size });
      default:
        return tf.layers.activation({ activation: layer.kind });
    }
  }
}

/** A network of tests/golden/web.json, with its weights and records drawn from the keystream as Python draws them. */
interface Known {
  shape: number[];
  classes: number;
  model: Task["model"];
  loss_name: Task["loss"];
  scores: number[];
  gradient: { every: number; values: number[] };
  norms: number[];
}

/** How far scores, gradients and norms of single gradients of known networks lie from PyTorch's, over the largest of each. */
async function agreement(known: Known[], key: number[], batch: number, device: "wasm" | "webgpu"): Promise<{ device: string | null; away: number[] }> {
  const multiplier = await JaxMultiplier.open(device);
  if (multiplier === null) return { device: null, away: [] };
  const drawn = async (tensor: number, count: number) => (await Keystream.withKey(Uint8Array.from(key))).words(5, tensor, 0, count);
  const numbers = async (tensor: number, count: number, scale: number) =>
    Float32Array.from(await drawn(tensor, count), (word) => ((word >>> 8) - 2 ** 23) * scale * 2 ** -23);
  const away: number[] = [];
  for (const row of known) {
    const network = new Network(row.model, row.shape, row.classes, row.loss_name, multiplier);
    const each = row.shape.reduce((product, side) => product * side, 1);
    const parameters = await numbers(0, row.model.size, 0.125);
    const x = network.arrange(await numbers(1, batch * each, 1), batch);
    const y = Array.from(await drawn(2, batch), (word) => word % row.classes);
    const records = network.batch(new Records(each, x, y), [...y.keys()]);
    const norms: number[] = [];
    for (const i of y.keys()) {
      const alone = await network.gradient(network.matrices(parameters), network.batch(new Records(each, x, y), [i]));
      norms.push(Math.sqrt(alone.gradient.reduce((sum, value) => sum + value * value, 0)));
    }
    const { gradient } = await network.gradient(network.matrices(parameters), records);
    away.push(Math.max(
      distance(await network.scores(parameters, records), row.scores, 1), distance(gradient, row.gradient.values, row.gradient.every),
      distance(norms, row.norms, 1),
    ));
  }
  return { device: multiplier.device, away };
}

function distance(own: ArrayLike<number>, theirs: readonly number[], every: number): number {
  const largest = Math.max(...theirs.map(Math.abs));
  return Math.max(...theirs.map((value, i) => Math.abs(own[i * every]! - value))) / largest;
}

Object.assign(globalThis, { speeds: { page, private: privately, tensorflow }, head, agreement });
