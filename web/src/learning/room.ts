/** The training room: networks on this page's records. It sees no server, and what it makes goes to the privacy room. */
import { Keystream, type Words } from "../bits/keystream.ts";
import { STOPPED } from "../wire/refusal.ts";
import { type Task, readTask } from "../wire/task.ts";
import { denseAlone } from "./linear_head.ts";
import { JaxMultiplier, type Multiplier, ScriptMultiplier } from "./multiply.ts";
import { Network, probabilities } from "./network.ts";
import { Records } from "./records.ts";
import { FeatureSums, type Summing } from "./sums.ts";
import { type Progress, train, withNoise } from "./training.ts";

export interface Job {
  round: number;
  parameters: Float32Array;
  /** the person's own noise multiplier */
  noise: number | null;
  order: Int32Array | null;
  /** for tasks that sum */
  summing: Summing | null;
}

export interface Outcome {
  parameters: Float32Array | null;
  /** for the owner's eyes alone: see `Trained` */
  clear: Float32Array | null;
  /** exact sums, for tasks that sum */
  sums: Float64Array | null;
  loss: number | null;
  seen: number;
  seconds: number;
  order: Int32Array | null;
}

export interface Device {
  device: "script" | "wasm" | "webgpu";
  threads: number;
  notes: string[];
}

export class TrainingRoom {
  readonly #progress: Progress;
  readonly #fresh: () => Promise<Words>;
  #task: Task | null = null;
  #network: Network | null = null;
  #sums: FeatureSums | null = null;
  #records = new Records(0);
  #running = 0;

  constructor(progress: Progress = () => {}, fresh: () => Promise<Words> = () => Keystream.fresh()) {
    this.#progress = progress;
    this.#fresh = fresh;
  }

  /** Builds the network on the fastest means of computing that there is. */
  async open(given: unknown): Promise<Device> {
    const task = readTask(given);
    if (task.training.kind === "sums") {
      this.#sums = new FeatureSums(task, task.training);
      this.#task = task;
      return { device: "script", threads: 1, notes: [] };
    }
    const { multiplier, notes } = await chosenMultiplier(task);
    this.#task = task;
    this.#network = networkOf(task, multiplier);
    return { device: multiplier.device, threads: multiplier.threads, notes };
  }

  /** The records to train on, normalised, in the shape of the task's input, in place of all from before. */
  take(x: Float32Array, y: Int32Array): void {
    if (this.#sums) return this.#sums.take(x, y);
    this.#records = new Records(this.#opened.network.recordSize);
    this.add(x, y);
  }

  /** Another block of records: as many as the first has, but the last may have fewer. */
  add(x: Float32Array, y: Int32Array): void {
    if (this.#sums) return this.#sums.add(x, y);
    this.#records.add(this.#opened.network.arrange(x, y.length), y);
  }

  async train({ round, parameters, noise, order, summing }: Job): Promise<Outcome> {
    const run = (this.#running += 1);
    const begun = performance.now();
    const seconds = () => (performance.now() - begun) / 1000;
    const step: Progress = (...done) => {
      if (run !== this.#running) throw new Error(STOPPED);
      this.#progress(...done);
    };
    if (this.#sums) {
      if (!summing) throw new Error("it is not said how long whole vectors may be");
      const summed = await this.#sums.sum(parameters, summing, step);
      return { ...summed, seconds: seconds() };
    }
    const { task, network } = this.#opened;
    const trained = await train(withNoise(task, noise), network, parameters, this.#records, round, await this.#fresh(), step, order);
    return { ...trained, sums: null, seconds: seconds() };
  }

  /** Ends training after its current step. */
  stop(): void {
    this.#running += 1;
  }

  /** Probabilities of the classes for one normalised record. */
  async predict(parameters: Float32Array, record: Float32Array): Promise<number[]> {
    if (this.#sums) return probabilities(Float32Array.from(this.#sums.scores(parameters, record)), "cross-entropy");
    const { task, network } = this.#opened;
    const scores = await network.scores(parameters, { x: network.arrange(record, 1), size: 1 });
    return probabilities(scores, task.loss);
  }

  get #opened(): { task: Task; network: Network } {
    if (!this.#task || !this.#network) throw new Error("the training room is not open");
    return { task: this.#task, network: this.#network };
  }
}

function networkOf(task: Task, multiplier: Multiplier): Network {
  return new Network(task.model, task.input.shape, task.classes.length, task.loss, multiplier);
}

/** A step that takes longer than this in wasm is worth a try on a graphics card. */
const SLOW_STEP = 30;

/**
 * Private training stays on one thread of the processor: what a record adds must not depend on what is computed beside it,
 * which a graphics card does not promise. A linear model is computed in whole numbers by plain script.
 */
async function chosenMultiplier(task: Task): Promise<{ multiplier: Multiplier; notes: string[] }> {
  const alone = task.training.kind === "private";
  if (alone && denseAlone(task)) return { multiplier: new ScriptMultiplier(), notes: [] };
  const wasm = await (alone ? JaxMultiplier.open("wasm", 1) : JaxMultiplier.open("wasm")).catch(() => null);
  if (!wasm) {
    const note = "This browser does not let the page run WebAssembly, so training is slower; everything else is the same.";
    return { multiplier: new ScriptMultiplier(), notes: [note] };
  }
  if (alone) return { multiplier: wasm, notes: ["Training takes one example at a time, and no graphics card: so no example leaves a trace in what is computed of another."] };
  const notes = wasm.threads > 1 ? [] : ["Training uses one thread: this browser or this address does not allow more."];
  const slow = await stepTime(task, wasm);
  if (slow < SLOW_STEP || !globalThis.navigator || !("gpu" in globalThis.navigator)) return { multiplier: wasm, notes };
  const webgpu = await JaxMultiplier.open("webgpu").catch(() => null);
  const faster = webgpu !== null && (await stepTime(task, webgpu).catch(() => Infinity)) < slow;
  return { multiplier: faster ? webgpu : wasm, notes };
}

/** Milliseconds of one step of plain training on made-up records, after one that compiles what is needed. */
async function stepTime(task: Task, multiplier: Multiplier): Promise<number> {
  const network = networkOf(task, multiplier);
  const size = task.training.kind === "plain" ? Math.min(64, task.training.batch || 32) : 1;
  const chosen = Array.from({ length: size }, (_, i) => i);
  const batch = network.batch(new Records(network.recordSize, new Float32Array(size * network.recordSize), chosen.map(() => 0)), chosen);
  const at = network.matrices(new Float32Array(network.size));
  await network.gradient(at, batch);
  const begun = performance.now();
  await network.gradient(at, batch);
  return performance.now() - begun;
}
