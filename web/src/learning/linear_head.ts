/**
 * Per-record gradients of a linear softmax model in whole numbers, the same on every machine and in every order
 * (docs/bits.md, "DP-SGD on whole numbers"; sordino.learning.linear_head).
 *
 * A record x with a 1 for the bias has the gradient r x^T, r = softmax(W x) - onehot(y). So x is rounded to a whole vector of
 * norm at most `features`, and r, scaled by what clipping leaves of it, to one of norm at most `residuals`. Nothing depends
 * on other records: sums over one stay below 2^53 and sums over all are kept modulo 2^52, the exponential is a table of whole
 * numbers, and everything else is one correctly rounded operation (+ - * / sqrt, rounding) at a time.
 */
import { exponentOf, powerOfTwo } from "../bits/discrete.ts";
import { exponential, rational } from "../bits/rational.ts";
import type { Task } from "../wire/task.ts";
import { Workbench } from "./products.ts";
import type { Records } from "./records.ts";
import { UNREDUCED, aim, reduce, rint, roundWithin } from "./whole.ts";

/** a record's largest value has so many bits before it is scaled to the grid */
export const FEATURE_BITS = 18;
/** the bias included: scores are at most sqrt(2^16) * 2^15 * 2^30 = 2^53 */
const MOST_FEATURES = 2 ** 16;
/** so that sums of exponentials, of 40 bits each, are at most 2^53 */
const MOST_CLASSES = 2 ** 13;
const WEIGHT_STEPS = 2 ** 16;
const LARGEST_WEIGHT = 2 ** 14;
const SCORE_STEPS = 1024;
const LOWEST_SCORE = 24 * SCORE_STEPS;
const TABLE_BITS = 40n;

/** Records whose gradients are computed together. */
const AT_ONCE = 8;

/** The whole norms of a record and of its residuals, whose product is at most the clip. */
export function splitClip(clip: number): { features: number; residuals: number } {
  const residuals = 2 ** Math.floor((2 * (exponentOf(clip) - 1)) / 5);
  return { features: Math.floor(clip / residuals), residuals };
}

/** The sum of clipped gradients of whole records under whole weights `[classes, width]`, residuals of norm at most `limit`. */
export class GradientSum {
  readonly #bench: Workbench;
  /** `[classes, width]` */
  readonly #weights: Float64Array;
  readonly #total: Float64Array;
  readonly #aim: number;
  #losses = 0;
  /** records that were added since the sum was reduced */
  #added = 0;
  // the records at hand
  #count = 0;
  /** `[records, width]` */
  readonly #rows: Float64Array;
  readonly #scales = new Float64Array(AT_ONCE);
  readonly #lengths = new Float64Array(AT_ONCE);
  readonly #labels = new Int32Array(AT_ONCE);
  /** `[records, classes]`: scores, then probabilities */
  readonly #likely: Float64Array;
  readonly #residual: Float64Array;
  /** `[records, classes]`: whole residuals, and the same record by record */
  readonly #parts: Float64Array;
  readonly #part: Float64Array[];

  constructor(readonly classes: number, readonly width: number, readonly clip: number, readonly limit: number) {
    this.#bench = new Workbench([classes * width, classes * width, AT_ONCE * width]);
    [this.#weights, this.#total, this.#rows] = this.#bench.arrays as [Float64Array, Float64Array, Float64Array];
    this.#aim = aim(limit, classes);
    [this.#likely, this.#parts] = [new Float64Array(AT_ONCE * classes), new Float64Array(AT_ONCE * classes)];
    this.#residual = new Float64Array(classes);
    this.#part = Array.from({ length: AT_ONCE }, (_, i) => this.#parts.subarray(i * classes, (i + 1) * classes));
  }

  /** Begins a sum at 0, at such weights. */
  begin(weights: Float64Array): void {
    this.#weights.set(weights);
    this.#total.fill(0);
    [this.#count, this.#added, this.#losses] = [0, 0, 0];
  }

  /** Adds a record of norm `length`, which is about whole/scale. */
  add(whole: Float64Array | Int16Array, scale: number, length: number, label: number): void {
    const i = this.#count;
    this.#rows.set(whole, i * this.width);
    [this.#scales[i], this.#lengths[i], this.#labels[i]] = [scale, length, label];
    this.#count += 1;
    if (this.#count === AT_ONCE) this.#addRows();
  }

  /** The sum `[classes, width]` modulo 2^52, to be read before the next begins, and the sum of all losses so far. */
  get now(): { total: Float64Array; losses: number } {
    this.#addRows();
    this.#reduce();
    return { total: this.#total, losses: this.#losses };
  }

  #addRows(): void {
    const [count, classes, width] = [this.#count, this.classes, this.width];
    this.#bench.multiply(this.#rows, count, this.#weights, classes, width, this.#likely);
    for (let i = 0; i < count; i += 1) this.#losses += this.#residuals(i);
    this.#bench.addTransposed(this.#total, this.#parts, classes, this.#rows, count, width);
    this.#added += count;
    this.#count = 0;
    if (this.#added >= UNREDUCED) this.#reduce();
  }

  #reduce(): void {
    reduce(this.#total);
    this.#added = 0;
  }

  /** Makes whole residuals of the i-th record's scores; gives back its loss. */
  #residuals(i: number): number {
    const [share, first, length, label] = [this.#likely, i * this.classes, this.#lengths[i]!, this.#labels[i]!];
    this.#makeLikely(first, this.#scales[i]!);
    const residual = this.#residual;
    let square = 0;
    for (let k = 0; k < this.classes; k += 1) {
      const r = share[first + k]! - (k === label ? 1 : 0);
      residual[k] = r;
      square = k === 0 ? r * r : square + r * r;
    }
    const norm = Math.sqrt(square) * length;
    const kept = norm > this.clip ? length * (this.clip / norm) : length;
    roundWithin(residual, kept * (this.#aim / this.clip), this.limit, this.#part[i]!);
    return -Math.log(share[first + label]!);
  }

  /** Makes the model's probabilities of the classes of the scores from `first` on. */
  #makeLikely(first: number, scale: number): void {
    const [likely, table, end] = [this.#likely, exponentials(), first + this.classes];
    const divisor = scale * WEIGHT_STEPS;
    let highest = -Infinity;
    for (let k = first; k < end; k += 1) {
      likely[k]! /= divisor;
      if (likely[k]! > highest) highest = likely[k]!;
    }
    let sum = 0;
    for (let k = first; k < end; k += 1) {
      const below = Math.min((highest - likely[k]!) * SCORE_STEPS, LOWEST_SCORE);
      likely[k] = table[Math.floor(below + 0.5)]!;
      sum += likely[k]!;
    }
    for (let k = first; k < end; k += 1) likely[k]! /= sum;
  }
}

export class LinearHead {
  readonly #width: number;
  readonly #features: { limit: number; aim: number };
  readonly #gradients: GradientSum;
  /** where the weights of the record's j-th value lie among those of a class */
  readonly #columns: Int32Array;
  // of the record at hand
  readonly #fixed: Float64Array;
  readonly #whole: Float64Array;

  /** For records of a shape as the network lays them out, channels last, and a clip of so many grid steps. */
  private constructor(shape: readonly number[], readonly inputs: number, readonly classes: number, clip: number, steps: number) {
    const { features, residuals } = splitClip(steps);
    const [channels, ...sides] = shape;
    const pixels = sides.reduce((product, side) => product * side, 1);
    this.#width = inputs + 1;
    this.#columns = Int32Array.from({ length: inputs }, (_, j) => (j % channels!) * pixels + Math.floor(j / channels!));
    this.#features = { limit: features, aim: aim(features, this.#width) };
    this.#gradients = new GradientSum(classes, this.#width, clip, residuals);
    [this.#fixed, this.#whole] = [new Float64Array(this.#width), new Float64Array(this.#width)];
  }

  /** The linear head that a task's model is, if it is one: a single dense layer, flattened before, under cross-entropy. */
  static of(task: Task, clip: number, steps: number): LinearHead | null {
    const dense = denseAlone(task);
    return dense && new LinearHead(task.input.shape, dense.inputs, dense.outputs, clip, steps);
  }

  /** Adds the parts of some records, modulo 2^52, to a sum, flat as the parameters are; gives back the sum of their losses. */
  addTo(sum: Float64Array, parameters: Float32Array, records: Records, chosen: ArrayLike<number>): number {
    const gradients = this.#gradients;
    gradients.begin(wholeWeights(parameters, this.inputs, this.classes, this.#columns));
    for (let i = 0; i < chosen.length; i += 1) {
      const { x, first, label } = records.at(chosen[i]!);
      const { length, scale } = this.#round(x, first);
      gradients.add(this.#whole, scale, length, label);
    }
    const { total, losses } = gradients.now;
    addFlat(sum, total, this.inputs, this.classes, this.#columns);
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
    const shorter = roundWithin(fixed, factor, this.#features.limit, this.#whole);
    return { length: norm / power, scale: factor * shorter * power };
  }
}

/**
 * Weights `[classes, inputs + 1]` as whole numbers of 2^-16, the bias last; the j-th value's are those of column j, and what
 * is not finite is 0.
 */
export function wholeWeights(parameters: Float32Array, inputs: number, classes: number, columns?: Int32Array): Float64Array {
  const weights = new Float64Array(classes * (inputs + 1));
  for (let k = 0; k < classes; k += 1) {
    const at = k * (inputs + 1);
    for (let j = 0; j < inputs; j += 1) weights[at + j] = wholeWeight(parameters[k * inputs + (columns ? columns[j]! : j)]!);
    weights[at + inputs] = wholeWeight(parameters[classes * inputs + k]!);
  }
  return weights;
}

/** Adds a sum `[classes, inputs + 1]` to one that is flat as the parameters are: weights, then biases. */
export function addFlat(sum: Float64Array, total: Float64Array, inputs: number, classes: number, columns?: Int32Array): void {
  for (let k = 0; k < classes; k += 1) {
    const at = k * (inputs + 1);
    for (let j = 0; j < inputs; j += 1) sum[k * inputs + (columns ? columns[j]! : j)]! += total[at + j]!;
    sum[classes * inputs + k]! += total[at + inputs]!;
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
