/** Discrete Gaussian noise, and the grid of private training on whole numbers (docs/bits.md). */
import { Refused } from "../wire/refusal.ts";
import { AliasTable } from "./alias.ts";
import { type Noise, bell } from "./noise.ts";
import { ceilDivide, logRatio, rational, toNumber } from "./rational.ts";

const TOTAL = 1n << 64n;
/** standard deviations that two inputs may lie apart in one value: what tables reach for */
export const FARTHEST = 16;
/** standard deviations around either input within which probabilities are compared */
const INSIDE = 10;
/** erfc(10/sqrt 2), the mass beyond them */
const TAIL = 1.5239706048321186e-23;
/** of a table, in its standard deviations */
const TABLE_REACH = 28.1;
/** the largest bits of a single table */
const ONE_TABLE = 9;

/** How far noise is from a Gaussian, for one value: delta(eps) <= delta of the Gaussian at (eps - eta), plus tau. */
export interface Slack {
  /** of the Gaussian, in grid steps */
  sigma: number;
  eta: number;
  tau: number;
}

/** Discrete Gaussian noise of sigma = 2^bits: draws y0 + 2^digit y1 + 4^digit y2 + .. of one table. */
export class DiscreteGaussian implements Noise {
  readonly wordsPerValue: number;
  readonly levels: number;
  readonly digit: number;
  readonly table: AliasTable;
  /** index of the table's central weight */
  readonly offset: number;
  /** the largest possible |noise| */
  readonly reach: number;
  readonly slack: Slack;
  readonly #place: number;

  constructor(readonly bits: number) {
    if (!(Number.isInteger(bits) && bits >= 1 && bits <= 30)) {
      throw new RangeError(`discrete Gaussian noise has sigma = 2^1 to 2^30 steps, got 2^${bits}`);
    }
    let levels = 1;
    while (bits - (levels - 1) * Math.floor((bits - 1) / levels) > ONE_TABLE) levels += 1;
    const digit = levels > 1 ? Math.floor((bits - 1) / levels) : 0;
    let [squares, places] = [0n, 0];
    for (let i = 0; i < levels; i += 1) {
      squares += 1n << BigInt(2 * digit * i);
      places += 2 ** (digit * i);
    }
    const variance = rational(1n << BigInt(2 * bits), squares);
    const width = Math.sqrt(toNumber(variance));
    this.levels = levels;
    this.digit = digit;
    this.#place = 2 ** digit;
    this.offset = Math.ceil(TABLE_REACH * width) + 1;
    this.reach = this.offset * places;
    this.wordsPerValue = 2 * levels;
    const { weights, short, over } = balanced(bell(rational(variance.d, 2n * variance.n), this.offset), Math.ceil(width));
    this.table = new AliasTable(weights);
    const z = INSIDE + FARTHEST;
    const eta = roundingGap(z ** 4, z ** 2, this.sigma) + levels * (short + TAIL) + 1e-30;
    const tau = roundingGap(3, 1, this.sigma) + levels * (over + TAIL) + 3 * TAIL;
    this.slack = { sigma: Math.sqrt(this.sigma ** 2 - 1 / 12), eta, tau };
  }

  /** Standard deviation in grid steps, exactly. */
  get sigma(): number {
    return 2 ** this.bits;
  }

  draw(words: Uint32Array, at: number): number {
    let noise = 0;
    for (let level = this.levels - 1; level >= 0; level -= 1) {
      const lane = at + 2 * level;
      noise = noise * this.#place + this.table.draw(words[lane]!, words[lane + 1]!);
    }
    return noise - this.reach;
  }
}

const made = new Map<number, DiscreteGaussian>();

/** Discrete Gaussian noise of sigma = 2^bits grid steps; each table is built once. */
export function discreteGaussian(bits: number): DiscreteGaussian {
  const found = made.get(bits) ?? new DiscreteGaussian(bits);
  made.set(bits, found);
  return found;
}

/** |ln| of a discrete Gaussian over the rounded Gaussian of variance sigma^2 - 1/12, from moments of the distance. */
function roundingGap(fourth: number, square: number, sigma: number): number {
  return (2.02 * (fourth / 2880 + square / 150 + 0.01)) / sigma ** 4;
}

/**
 * Weights with sum 2^64 for k = -reach .. reach; what rounding up costs is taken evenly from |k| <= inner. With it the
 * largest ln(ideal/weight), and the total by which weights exceed their ideals.
 */
function balanced(shape: bigint[], inner: number): { weights: bigint[]; short: number; over: number } {
  const sum = (values: bigint[]) => values.reduce((total, value) => total + value, 0n);
  const total = 2n * sum(shape) - shape[0]!;
  const ideals = shape.map((each) => ceilDivide(each * TOTAL, total));
  const outer = ideals.slice(inner + 1).map((ideal) => (ideal > 1n ? ideal : 1n));
  const room = TOTAL - 2n * sum(outer);
  const wanted = 2n * sum(shape.slice(0, inner + 1)) - shape[0]!;
  const half = [...shape.slice(0, inner + 1).map((each) => (each * room) / wanted), ...outer];
  half[0]! += TOTAL - (2n * sum(half) - half[0]!);
  let [short, excess] = [0, 0n];
  half.forEach((weight, k) => {
    const ideal = ideals[k]!;
    if (ideal > weight) short = Math.max(short, logRatio(ideal, weight));
    if (weight + 1n > ideal) excess += weight + 1n - ideal;
  });
  const weights = [...half.slice(1).toReversed(), ...half];
  return { weights, short: short + 1e-18, over: toNumber(rational(2n * excess, TOTAL)) };
}

// --- the grid of private training -------------------------------------------------------------------------------------

const LARGEST_CLIP = 2 ** 23;
const SMALLEST_CLIP = 8;

/** The whole numbers of one step's sum. */
export interface Grid {
  /** L2 norm that no record's vector exceeds, in grid steps */
  clip: number;
  noise: DiscreteGaussian;
}

/** As many grid steps to the clip as keep the noise at `multiplier` times the clip, or more. */
export function gridFor(multiplier: number, resolution: number): Grid {
  const largest = exponentOf(Math.max(2, multiplier * LARGEST_CLIP)) - 1; // where the noise would be more, it has fewer bits
  const noise = discreteGaussian(Math.max(1, Math.min(resolution, largest)));
  const clip = Math.min(LARGEST_CLIP, Math.floor(noise.slack.sigma / multiplier));
  if (clip >= SMALLEST_CLIP) return { clip, noise };
  throw new Refused(
    `this page cannot take part: a noise multiplier of ${multiplier} leaves a record ${clip} steps of the grid where the ` +
      `noise has 2^${noise.bits}; ${SMALLEST_CLIP} are the least`,
  );
}

const view = new DataView(new ArrayBuffer(8));

/** The e with 2^(e-1) <= value < 2^e, from the bits of a positive float; 0 for 0. */
export function exponentOf(value: number): number {
  if (value === 0) return 0;
  view.setFloat64(0, value);
  return ((view.getUint32(0) >>> 20) & 0x7ff) - 1022;
}

/** 2^exponent by its bits, exactly: for -1022 to 1023. */
export function powerOfTwo(exponent: number): number {
  view.setFloat64(0, 0);
  view.setUint32(0, (exponent + 1023) << 20);
  return view.getFloat64(0);
}
