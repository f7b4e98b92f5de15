/**
 * What the server could make of one picture in this page's reports: an attack on reports that are made here and go nowhere.
 *
 * The attacker knows all other records, and takes off a report what they add. What is left is what this record adds, a gradient of a
 * linear model, plus the noise of the report. It sends a model of zeros and no whitening in every round, which the proof allows, puts
 * the reports of all rounds together, and reads the record off by a closed form. It is told the class, and how long the gradient is.
 */
import { Keystream } from "../bits/keystream.ts";
import { noiseIn, recordIn, rowsOf } from "../learning/closed_form.ts";
import { LinearDecoder } from "../learning/linear_decoder.ts";
import { denseAlone } from "../learning/linear_head.ts";
import { type Job, type Outcome, TrainingRoom } from "../learning/room.ts";
import { Refused } from "../wire/refusal.ts";
import { type NoisySums, type Task, readTask, stageOf } from "../wire/task.ts";
import { noisySums, readSums } from "./noisy_sums.ts";
import type { FreshWords } from "./privacy.ts";

/** Which reports are attacked: so many from the first one on, with a participant's own noise multiplier (null: the task's). */
export interface Reports {
  first: number;
  rounds: number;
  noise: number | null;
}

/** What an attack makes of a record. */
export interface Guess {
  /** normalised as records are */
  record: Float32Array;
  /** whether it is nearer to the true record than to any public one */
  isNearest: boolean;
}

export interface Leak {
  /** from reports without noise; null where the record is in none of their batches */
  bare: Guess | null;
  /** from reports as the server gets them; null where it gets no gradient */
  sent: Guess | null;
  /** gradients that the server puts together */
  gradients: number;
}

/** Gradients of a record, flat as the parameters are: one, or the mean of several. */
export interface Gradients {
  bare: Float64Array;
  sent: Float64Array;
}

/** times the unit matrix: what a plan whitens by before anything is known, as Python's */
const UNWHITENED = 2 ** 16;

/** Whether a record of this task can be read off its gradient: grey pictures, and a linear model of three classes or more. */
export function hasClosedForm(task: Task): boolean {
  const { kind, shape } = task.input;
  const linear = task.training.kind === "sums" || (task.training.kind === "private" && denseAlone(task) !== null);
  return linear && kind === "image" && shape[0] === 1 && task.classes.length > 2;
}

export class LeakRoom {
  readonly #fresh: FreshWords;
  readonly #training: TrainingRoom;
  #attack: Attack | null = null;
  #task: Task | null = null;
  #last: Promise<unknown> = Promise.resolve();

  constructor(fresh: FreshWords = () => Keystream.fresh()) {
    this.#fresh = fresh;
    this.#training = new TrainingRoom(() => {}, fresh);
  }

  /** Prepares attacks on a task's reports, with public pictures `[count, height, width]` to learn from, normalised. */
  async open(given: unknown, x: Float32Array, y: Int32Array): Promise<void> {
    const task = readTask(given);
    if (!hasClosedForm(task)) throw new Refused("records of this federation have no closed form");
    this.#task = task;
    await this.#training.open(task);
    const rows = await this.#rows(x, y);
    this.#attack = new Attack({ rows, x, y, classes: task.classes.length, isPixels: task.training.kind !== "sums" });
  }

  /** What can be made of one record, which is in no report that leaves and in nothing that is learnt from. */
  attack(record: Float32Array, reports: Reports): Promise<Leak> {
    const found = this.#last.then(() => this.#leak(record, reports)); // one at a time: they share the training room
    this.#last = found.catch(() => {});
    return found;
  }

  async #leak(record: Float32Array, reports: Reports): Promise<Leak> {
    const attack = this.#attack;
    if (!attack) throw new Error("no task is open");
    const label = attack.classOf(record);
    const rounds = this.#rounds(reports);
    // without any report the picture of one without noise is shown all the same
    const gradients = await this.gradients(record, label, rounds.length ? rounds : [this.#opened.rounds.count], reports.noise);
    const { bare, sent } = attack.guesses(gradients, label);
    return { bare, sent: rounds.length ? sent : null, gradients: rounds.length };
  }

  /** What reports say of a record once all other records are taken off: their mean, without noise, and with a fresh key for each. */
  async gradients(record: Float32Array, label: number, rounds: readonly number[], noise: number | null): Promise<Gradients> {
    const { model, strengths } = this.#opened;
    const { mechanism } = strengths[0]!;
    this.#training.take(record, Int32Array.of(label));
    const mean = { bare: new Float64Array(model.size), sent: new Float64Array(model.size) };
    for (const round of rounds) {
      const outcome = await this.#training.train(this.#job(round, noise));
      const { bare, sent } = mechanism.name === "noisy-sums" ? await this.#summed(mechanism, round, outcome) : descended(outcome);
      for (let i = 0; i < model.size; i += 1) {
        mean.bare[i]! += bare[i]! / rounds.length;
        mean.sent[i]! += sent[i]! / rounds.length;
      }
    }
    return mean;
  }

  /** The rounds in which gradients are reported. */
  #rounds({ first, rounds }: Reports): number[] {
    return Array.from({ length: rounds }, (_, i) => first + i).filter((round) => round > this.#opened.plan.bare);
  }

  async #summed(mechanism: NoisySums, round: number, { sums }: Outcome): Promise<Gradients> {
    const stage = stageOf(mechanism, round);
    return { bare: sums!, sent: readSums(stage, await noisySums(stage, sums, await this.#fresh())) };
  }

  /** What the attacker asks for in a round of gradients. */
  #job(round: number, noise: number | null): Job {
    const { model, training, strengths } = this.#opened;
    const job = { round, parameters: new Float32Array(model.size), noise, order: null, summing: null };
    const { mechanism } = strengths[0]!;
    if (training.kind !== "sums" || mechanism.name !== "noisy-sums") return job;
    const { maps } = training;
    const left = Float32Array.from({ length: maps * maps }, (_, i) => (i % (maps + 1) ? 0 : UNWHITENED));
    return { ...job, summing: { limits: mechanism.limits, whitening: { left, centre: new Float32Array(maps) } } };
  }

  /** What a linear model sees of each public picture, with the input of the bias: `[count, width]`. */
  async #rows(x: Float32Array, y: Int32Array): Promise<Float64Array> {
    const { training, classes, model, rounds } = this.#opened;
    const [count, width] = [y.length, model.size / classes.length];
    const [rows, each] = [new Float64Array(count * width), x.length / count];
    for (let i = 0; i < count; i += 1) {
      const record = x.subarray(i * each, (i + 1) * each);
      if (training.kind === "sums") {
        this.#training.take(record, y.subarray(i, i + 1));
        const { sums } = await this.#training.train(this.#job(rounds.count, null));
        rows.set(recordIn(rowsOf(sums!, classes.length), classes.length, y[i]!), i * width);
      } else rows.set([...record, 1], i * width);
    }
    return rows;
  }

  get #opened(): Task {
    if (!this.#task) throw new Error("no task is open");
    return this.#task;
  }
}

/** Of private training at weights of 0: where its steps led, the other way round. */
function descended({ parameters, clear }: Outcome): Gradients {
  const back = (led: Float32Array | null): Float64Array => Float64Array.from(led!, (value) => -value);
  return { bare: back(clear), sent: back(parameters) };
}

interface Known {
  /** `[count, width]`: what a linear model sees of public pictures */
  rows: Float64Array;
  x: Float32Array;
  y: Int32Array;
  classes: number;
  /** whether a linear model sees the pixels themselves */
  isPixels: boolean;
}

/** The attacker's arithmetic. Rows have length 1: clipping leaves of a gradient's length nothing to tell. */
class Attack {
  readonly #known: Known;
  readonly #width: number;
  readonly #decoder: LinearDecoder;

  constructor(known: Known) {
    const count = known.y.length;
    this.#width = known.rows.length / count;
    const rows = new Float64Array(known.rows.length);
    for (let i = 0; i < count; i += 1) rows.set(unit(known.rows.subarray(i * this.#width, (i + 1) * this.#width)), i * this.#width);
    this.#known = { ...known, rows };
    this.#decoder = new LinearDecoder(rows, known.isPixels ? rows : known.x, count);
  }

  /** The class of the public picture that is most like this one: what it is called does not matter to what can be read. */
  classOf(record: Float32Array): number {
    const { x, y } = this.#known;
    let [label, least] = [0, Infinity];
    for (let i = 0; i < y.length; i += 1) {
      const distance = record.reduce((sum, value, j) => sum + (value - x[i * record.length + j]!) ** 2, 0);
      if (distance < least) [label, least] = [y[i]!, distance];
    }
    return label;
  }

  /** What is made of gradients without noise and with it; null where the record is in neither. */
  guesses({ bare, sent }: Gradients, label: number): Record<keyof Gradients, Guess | null> {
    const { classes } = this.#known;
    const own = recordIn(rowsOf(bare, classes), classes, label);
    const length = norm(own);
    if (!(length > 0)) return { bare: null, sent: null };
    const guess = (gradient: Float64Array, isNoisy: boolean): Guess => {
      const rows = rowsOf(gradient, classes).map((value) => value / length);
      const record = this.#record(recordIn(rows, classes, label), isNoisy ? noiseIn(rows, classes, label) : 0);
      return { record, isNearest: this.#isNearest(rows, unit(own), label) };
    };
    return { bare: guess(bare, false), sent: guess(sent, true) };
  }

  /** A record from what is read off: pixels are the values over that of the bias, others have to be decoded. */
  #record(row: Float64Array, variance: number): Float32Array {
    const decoded = this.#decoder.decode(row, variance);
    if (!this.#known.isPixels) return Float32Array.from(decoded);
    const usual = 1 / row.length; // the square of a value, in rows of length 1
    const trust = usual / (usual + variance); // in what no public picture explains
    const values = decoded.map((value, j) => value + trust * (row[j]! - value));
    const bias = values.at(-1)!;
    return Float32Array.from(values.subarray(0, -1), (value) => (bias > 0 ? value / bias : 0));
  }

  /** Whether the true record is likelier than all public ones: of equal lengths, the one that points most along what is left. */
  #isNearest(rows: Float64Array, truth: Float64Array, label: number): boolean {
    const { y, classes, rows: others } = this.#known;
    const left = Array.from({ length: classes }, (_, k) => recordIn(rows, classes, k));
    const own = dot(left[label]!, truth);
    return y.every((k, i) => dot(left[k]!, others.subarray(i * this.#width, (i + 1) * this.#width)) < own);
  }
}

function dot(a: Float64Array, b: Float64Array): number {
  let sum = 0;
  for (let j = 0; j < a.length; j += 1) sum += a[j]! * b[j]!;
  return sum;
}

const norm = (values: Float64Array): number => Math.sqrt(dot(values, values));

function unit(values: Float64Array): Float64Array {
  const length = norm(values) || 1;
  return values.map((value) => value / length);
}
