/**
 * Per-record gradients of a linear softmax model in whole numbers, the same on every machine and in every order
 * (docs/bits.md, "DP-SGD on whole numbers"; sordino.learning.linear_head).
 *
 * A record x with a 1 for the bias has the gradient r x^T, r = softmax(W x) - onehot(y). So x is rounded to a whole vector of
 * norm at most `features`, and r, scaled by what clipping leaves of it, to one of norm at most `residuals`. Nothing depends
 * on other records: sums of whole numbers stay below 2^53, the exponential is a table of whole numbers, and everything else
 * is one correctly rounded operation (+ - * / sqrt, rounding) at a time.
 */
import { exponentOf, powerOfTwo } from "../bits/discrete.ts";
import { exponential, rational } from "../bits/rational.ts";
import type { Task } from "../wire/task.ts";
import { aim, rint, roundWithin } from "./whole.ts";

const FEATURE_BITS = 18;
/** the bias included: scores are at most sqrt(2^16) * 2^15 * 2^30 = 2^53 */
const MOST_FEATURES = 2 ** 16;
/** so that sums of exponentials, of 40 bits each, are at most 2^53 */
const MOST_CLASSES = 2 ** 13;
const WEIGHT_STEPS = 2 ** 16;
const LARGEST_WEIGHT = 2 ** 14;
const SCORE_STEPS = 1024;
const LOWEST_SCORE = 24 * SCORE_STEPS;
const TABLE_BITS = 40n;

/** A record's part of a sum, as its two factors: it is parts x whole. */
export interface Part {
  whole: Float64Array;
  parts: Float64Array;
  clipped: boolean;
  loss: number;
}

/** The whole norms of a record and of its residuals, whose product is at most the clip. */
export function splitClip(clip: number): { features: number; residuals: number } {
  const residuals = 2 ** Math.floor((2 * (exponentOf(clip) - 1)) / 5);
  return { features: Math.floor(clip / residuals), residuals };
}

export class LinearHead {
  readonly #width: number;
  readonly #features: { limit: number; aim: number };
  readonly #residuals: { limit: number; aim: number };
  /** where the weights of the record's j-th value lie among those of a class */
  readonly #columns: Int32Array;
  // of the record at hand
  readonly #fixed: Float64Array;
  readonly #residual: Float64Array;
  readonly #likely: Float64Array;
  readonly #part: { whole: Float64Array; parts: Float64Array };

  /** For records of a shape as the network lays them out, channels last, and a clip of so many grid steps. */
  private constructor(shape: readonly number[], readonly inputs: number, readonly classes: number, readonly clip: number, steps: number) {
    const { features, residuals } = splitClip(steps);
    const [channels, ...sides] = shape;
    const pixels = sides.reduce((product, side) => product * side, 1);
    this.#width = inputs + 1;
    this.#columns = Int32Array.from({ length: inputs }, (_, j) => (j % channels!) * pixels + Math.floor(j / channels!));
    this.#features = { limit: features, aim: aim(features, this.#width) };
    this.#residuals = { limit: residuals, aim: aim(residuals, classes) };
    this.#fixed = new Float64Array(this.#width);
    [this.#residual, this.#likely] = [new Float64Array(classes), new Float64Array(classes)];
    this.#part = { whole: new Float64Array(this.#width), parts: new Float64Array(classes) };
  }

  /** The linear head that a task's model is, if it is one: a single dense layer, flattened before, under cross-entropy. */
  static of(task: Task, clip: number, steps: number): LinearHead | null {
    const dense = denseAlone(task);
    return dense && new LinearHead(task.input.shape, dense.inputs, dense.outputs, clip, steps);
  }

  /** Weights `[classes, inputs + 1]` as whole numbers of 2^-16, the bias last; what is not finite is 0. */
  weights(parameters: Float32Array): Float64Array {
    const weights = new Float64Array(this.classes * this.#width);
    const biases = this.classes * this.inputs;
    for (let k = 0; k < this.classes; k += 1) {
      const at = k * this.#width;
      for (let j = 0; j < this.inputs; j += 1) weights[at + j] = wholeWeight(parameters[k * this.inputs + this.#columns[j]!]!);
      weights[at + this.inputs] = wholeWeight(parameters[biases + k]!);
    }
    return weights;
  }

  /** What one record, at `first` in x, adds to a sum; the vectors are overwritten by the next record's. */
  part(x: Float32Array, first: number, label: number, weights: Float64Array): Part {
    const { whole, parts } = this.#part;
    const { length, scale } = this.#round(x, first);
    const share = this.#shares(scale, weights);
    const residual = this.#residual;
    let square = 0;
    for (let k = 0; k < this.classes; k += 1) {
      const r = share[k]! - (k === label ? 1 : 0);
      residual[k] = r;
      square = k === 0 ? r * r : square + r * r;
    }
    const norm = Math.sqrt(square) * length;
    const clipped = norm > this.clip;
    const kept = clipped ? length * (this.clip / norm) : length;
    roundWithin(residual, kept * (this.#residuals.aim / this.clip), this.#residuals.limit, parts);
    return { whole, parts, clipped, loss: -Math.log(share[label]!) };
  }

  /** Adds the parts of some records to a sum, flat as the parameters are; gives back the sum of their losses. */
  addTo(sum: Float64Array, parameters: Float32Array, x: Float32Array, y: ArrayLike<number>, chosen: ArrayLike<number>): number {
    const weights = this.weights(parameters);
    const total = new Float64Array(weights.length);
    let losses = 0;
    for (let i = 0; i < chosen.length; i += 1) {
      const record = chosen[i]!;
      const { whole, parts, loss } = this.part(x, record * this.inputs, y[record]!, weights);
      losses += loss;
      for (let k = 0; k < this.classes; k += 1) {
        const part = parts[k]!;
        if (part === 0) continue;
        const at = k * this.#width;
        for (let j = 0; j < this.#width; j += 1) total[at + j]! += part * whole[j]!;
      }
    }
    const biases = this.classes * this.inputs;
    for (let k = 0; k < this.classes; k += 1) {
      const at = k * this.#width;
      for (let j = 0; j < this.inputs; j += 1) sum[k * this.inputs + this.#columns[j]!]! += total[at + j]!;
      sum[biases + k]! += total[at + this.inputs]!;
    }
    return losses;
  }

  /** The record as a whole vector: x is about whole/scale, and `length` is its norm. */
  #round(x: Float32Array, first: number): { length: number; scale: number } {
    const [fixed, inputs] = [this.#fixed, this.inputs];
    let largest = 1; // of the bias
    let finite = true;
    for (let j = 0; j < inputs; j += 1) {
      const size = Math.abs(x[first + j]!);
      if (size > largest) largest = size;
      if (!(size < Infinity)) finite = false;
    }
    const power = powerOfTwo(FEATURE_BITS - (finite ? exponentOf(largest) : 0));
    let squares = 0;
    for (let j = 0; j <= inputs; j += 1) {
      const value = finite ? rint((j < inputs ? x[first + j]! : 1) * power) : 0;
      fixed[j] = value;
      squares += value * value;
    }
    const norm = Math.sqrt(squares);
    const factor = this.#features.aim / Math.max(norm, 1);
    const shorter = roundWithin(fixed, factor, this.#features.limit, this.#part.whole);
    return { length: norm / power, scale: factor * shorter * power };
  }

  /** The model's probabilities of the classes for the record at hand. */
  #shares(scale: number, weights: Float64Array): Float64Array {
    const [likely, whole, table] = [this.#likely, this.#part.whole, exponentials()];
    const divisor = scale * WEIGHT_STEPS;
    let highest = -Infinity;
    for (let k = 0; k < this.classes; k += 1) {
      const at = k * this.#width;
      let score = 0;
      for (let j = 0; j < this.#width; j += 1) score += weights[at + j]! * whole[j]!;
      likely[k] = score / divisor;
      if (likely[k]! > highest) highest = likely[k]!;
    }
    let sum = 0;
    for (let k = 0; k < this.classes; k += 1) {
      const below = Math.min((highest - likely[k]!) * SCORE_STEPS, LOWEST_SCORE);
      likely[k] = table[Math.floor(below + 0.5)]!;
      sum += likely[k]!;
    }
    for (let k = 0; k < this.classes; k += 1) likely[k]! /= sum;
    return likely;
  }
}

/** The only layer of a linear softmax model; null where a model is another. */
export function denseAlone({ model, loss }: Task): { inputs: number; outputs: number } | null {
  const [dense, ...others] = model.layers.filter(({ kind }) => kind !== "flatten");
  if (loss !== "cross-entropy" || dense?.kind !== "dense" || others.length) return null;
  if (dense.inputs >= MOST_FEATURES || dense.outputs > MOST_CLASSES) return null;
  const [weight, bias, ...rest] = model.parameters;
  const fits = weight?.name === `${dense.name}.weight` && weight.size === dense.inputs * dense.outputs;
  return fits && bias?.name === `${dense.name}.bias` && bias.size === dense.outputs && !rest.length ? dense : null;
}

function wholeWeight(weight: number): number {
  if (!Number.isFinite(weight)) return 0;
  return rint(Math.max(-LARGEST_WEIGHT, Math.min(LARGEST_WEIGHT, weight)) * WEIGHT_STEPS);
}

let table: Float64Array | null = null;

/** e^(-i/1024) in units of 2^-40, rounded down, for i = 0 .. 24576. */
function exponentials(): Float64Array {
  if (table) return table;
  const bits = 192n;
  const ratio = exponential(rational(-1n, BigInt(SCORE_STEPS)), Number(bits));
  let value = 1n << bits;
  table = new Float64Array(LOWEST_SCORE + 1);
  for (let i = 0; i < table.length; i += 1) {
    table[i] = Number(value >> (bits - TABLE_BITS));
    value = (value * ratio) >> bits;
  }
  return table;
}
