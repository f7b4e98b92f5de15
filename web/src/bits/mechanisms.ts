/**
 * The randomisers of a page: from float32 values to the bytes that may leave, bit for bit as docs/bits.md has it.
 *
 * A mechanism is built from the whole numbers that a task names. What it costs is computed here from those numbers, and
 * never taken from a server's word for it.
 */
import { packBits, packIntegers, packReals, unpackBits, unpackIntegers, unpackReals } from "./encoding.ts";
import { PURPOSE, type Words } from "./keystream.ts";
import { COARSE_SIGMA, FINE_SIGMA, GaussianNoise, GeometricNoise, type Noise, normalThresholds } from "./noise.ts";
import { type Rational, ceilDivide, exactly, exponentialBounds, toNumber } from "./rational.ts";

/** Centre and radius of the box that values are clipped to: one number for all values, or one for each. */
export interface Box {
  centre: Float32Array;
  radius: Float32Array;
}

/** What one release of a mechanism loses, for every value that it is given (the words of `sordino.privacy`). */
export type ValueLoss =
  | { type: "Pure"; epsilon: number }
  | { type: "RandomizedBit"; t_min: number }
  | { type: "Gaussian"; mu: number; eta: number; tau: number }
  | { type: "Infinite"; why: string };

export interface Mechanism {
  readonly name: string;
  /** Of one value; the values of an upload are drawn independently of each other. */
  readonly loss: ValueLoss;
  randomise(values: Float32Array, words: Words, tensor?: number): Promise<Uint8Array<ArrayBuffer>>;
  /** The values that a reader sees in `count` randomised ones: unbiased, but for clipping. */
  read(bytes: Uint8Array, count: number): Float32Array;
}

const HALF = 2 ** 31;
const BINS = 4096;
export const MAX_EPSILON = 22.180709777685422; // the float64 after ln(2^32 - 1)

/** z in [-1, 1], every step rounded to float32; null where a value is not finite. */
function normalised(values: Float32Array, box: Box): Float32Array {
  const z = new Float32Array(values.length);
  const oneRadius = box.radius.length === 1;
  const oneCentre = box.centre.length === 1;
  if (!(oneRadius || box.radius.length === values.length) || !(oneCentre || box.centre.length === values.length)) {
    throw new RangeError(`a box for ${Math.max(box.radius.length, box.centre.length)} values cannot take ${values.length}`);
  }
  for (let i = 0; i < values.length; i += 1) {
    const inverse = Math.fround(1 / box.radius[oneRadius ? 0 : i]!);
    const away = Math.fround(values[i]! - box.centre[oneCentre ? 0 : i]!);
    const scaled = Math.fround(away * inverse);
    if (Number.isNaN(scaled) || !Number.isFinite(values[i]!)) {
      throw new RangeError("values hold NaN or infinity: nothing was released");
    }
    z[i] = Math.max(-1, Math.min(1, scaled));
  }
  return z;
}

/** From z back to values. */
function placed(z: ArrayLike<number>, { centre, radius }: Box): Float32Array {
  return Float32Array.from(z, (at, i) => at * radius[radius.length === 1 ? 0 : i]! + centre[centre.length === 1 ? 0 : i]!);
}

/** t_min = max(1, ceil(2^32 / (e^eps + 1))), rounded towards privacy. */
export function bitThreshold(epsilon: number): number {
  if (!(epsilon >= 1e-6)) throw new RangeError(`epsilon must be a number from 1e-6 up, got ${epsilon}`);
  const one = 1n << 192n;
  const bounds = exponentialBounds(exactly(Math.min(epsilon, MAX_EPSILON)));
  const thresholds = bounds.map((e) => Number(ceilDivide((1n << 32n) * one, e + one)));
  return Math.max(1, ...thresholds);
}

/** The largest float32 that does not exceed a whole number. */
export function largestFloat32(bound: number): number {
  const nearest = Math.fround(bound);
  if (nearest <= bound) return nearest;
  const bits = new Uint32Array(new Float32Array([nearest]).buffer);
  bits[0]! -= 1;
  return new Float32Array(bits.buffer)[0]!;
}

export class TwoPoint implements Mechanism {
  readonly name = "two-point";
  readonly loss: ValueLoss;
  readonly #scale: number;

  constructor(readonly tMin: number, readonly box: Box) {
    wholeNumber("t_min", tMin, 1, HALF);
    this.loss = { type: "RandomizedBit", t_min: tMin };
    this.#scale = largestFloat32(HALF - tMin);
  }

  /** The whole numbers t that words are compared with. */
  thresholds(values: Float32Array): Int32Array {
    return Int32Array.from(normalised(values, this.box), (z) => Math.trunc(Math.fround(z * this.#scale)));
  }

  async randomise(values: Float32Array, words: Words, tensor = 0): Promise<Uint8Array<ArrayBuffer>> {
    const t = this.thresholds(values);
    const drawn = await words.words(PURPOSE.noise, tensor, 0, values.length);
    return packBits(Array.from(t, (threshold, i) => (drawn[i]! | 0) < threshold));
  }

  read(bytes: Uint8Array, count: number): Float32Array {
    const away = this.tMin < HALF ? HALF / (HALF - this.tMin) : 0; // a fair coin tells nothing
    return placed(unpackBits(bytes, count).map((bit) => (bit ? away : -away)), this.box);
  }
}

export class RandomisedSign implements Mechanism {
  readonly name = "sign";
  readonly loss: ValueLoss;
  readonly table: Int32Array;

  /** `upper` are the thresholds for z >= 0 in 4,097 bins, rising. */
  constructor(upper: readonly number[], readonly box: Box) {
    const rising = upper.every((t, k) => Number.isInteger(t) && t >= (upper[k - 1] ?? 0) && t < HALF);
    if (upper.length !== BINS + 1 || !rising) throw new RangeError(`thresholds must be ${BINS + 1} rising whole numbers from 0 to 2^31 - 1`);
    this.table = new Int32Array(2 * BINS + 1);
    for (let k = 1; k <= BINS; k += 1) {
      this.table[BINS + k] = upper[k]!;
      this.table[BINS - k] = -upper[k]!;
    }
    this.loss = { type: "RandomizedBit", t_min: HALF - this.table.reduce((most, t) => Math.max(most, t), 0) };
  }

  /** Pr[1] = Phi(z ratio), with ratio = radius/sigma. */
  static gaussian(ratio: number, box: Box): RandomisedSign {
    if (!(ratio >= 1e-7 && ratio <= 40)) throw new RangeError(`radius/sigma must lie between 1e-7 and 40, got ${ratio}`);
    return new RandomisedSign(normalThresholds(ratio, BINS), box);
  }

  /** Randomised response on the sign alone. */
  static response(tMin: number, box: Box): RandomisedSign {
    wholeNumber("t_min", tMin, 1, HALF);
    return new RandomisedSign([0, ...Array<number>(BINS).fill(HALF - tMin)], box);
  }

  async randomise(values: Float32Array, words: Words, tensor = 0): Promise<Uint8Array<ArrayBuffer>> {
    const z = normalised(values, this.box);
    const drawn = await words.words(PURPOSE.noise, tensor, 0, values.length);
    const bits = Array.from(z, (each, i) => {
      const bin = Math.trunc(Math.fround(each * (BINS + 0.5)));
      return (drawn[i]! | 0) < this.table[BINS + bin]!;
    });
    return packBits(bits);
  }

  /** One of two values: a reader learns on which side of the centre each is. */
  read(bytes: Uint8Array, count: number): Float32Array {
    return placed(unpackBits(bytes, count).map((bit) => (bit ? 1 : -1)), this.box);
  }
}

/** Whole-number noise on a grid of `steps` from the centre of the box to its edge. */
abstract class OnGrid implements Mechanism {
  abstract readonly name: string;
  abstract readonly loss: ValueLoss;
  abstract readonly noise: Noise;
  abstract readonly limit: number;
  abstract readonly steps: number;
  abstract readonly box: Box;

  /** v + noise, clamped to +-limit. */
  async outputs(values: Float32Array, words: Words, tensor = 0): Promise<Float64Array> {
    const z = normalised(values, this.box);
    const each = this.noise.wordsPerValue;
    const drawn = await words.words(PURPOSE.noise, tensor, 0, values.length * each);
    return Float64Array.from(z, (at, i) => {
      const v = roundHalfEven(Math.fround(at * Math.fround(this.steps)));
      return Math.max(-this.limit, Math.min(this.limit, v + this.noise.draw(drawn, i * each)));
    });
  }

  async randomise(values: Float32Array, words: Words, tensor = 0): Promise<Uint8Array<ArrayBuffer>> {
    return packIntegers(await this.outputs(values, words, tensor), -this.limit, this.limit);
  }

  read(bytes: Uint8Array): Float32Array {
    return placed(unpackIntegers(bytes, -this.limit, this.limit).map((value) => value / this.steps), this.box);
  }
}

function roundHalfEven(x: number): number {
  const rounded = Math.round(x); // halves go up
  return rounded - x === 0.5 && rounded % 2 !== 0 ? rounded - 1 : rounded;
}

export class Laplace extends OnGrid {
  override readonly name = "laplace";
  override readonly limit: number;
  override readonly loss: ValueLoss;

  constructor(override readonly steps: number, override readonly noise: GeometricNoise, override readonly box: Box) {
    super();
    powerOfTwo("steps", steps, 2 ** 8, 2 ** 22);
    this.limit = noise.tail - steps;
    if (this.limit < steps) throw new RangeError("a table that does not reach across the box would exclude inputs");
    this.loss = { type: "Pure", epsilon: noise.loss(2 * steps) };
  }
}

/** How far the tables of Laplace noise reach for an epsilon per value (docs/bits.md). */
export function laplaceReach(epsilon: number, steps: number, rate: Rational): number {
  const tail = epsilon > 22.5 ? 20 : Math.max(9, Math.min(20, 31 - epsilon));
  return 2 * steps + Math.ceil(tail / toNumber(rate)) + 1;
}

export class Gaussian extends OnGrid {
  override readonly name = "gaussian";
  override readonly limit: number;
  override readonly loss: ValueLoss;

  constructor(override readonly steps: number, override readonly noise: GaussianNoise, override readonly box: Box) {
    super();
    if (box.radius.some((radius) => radius !== box.radius[0])) {
      throw new RangeError("Gaussian noise needs one radius for all values");
    }
    this.limit = steps + noise.reach;
    const { eta, tau } = noise;
    this.loss = { type: "Gaussian", mu: (2 * steps) / noise.provenSigma, eta, tau };
  }

  /** On the grid that docs/bits.md chooses for noise of standard deviation `sigma`. */
  static of(sigma: number, box: Box): Gaussian {
    const relative = sigma / box.radius[0]!;
    if (!(relative >= 1 / 512 && relative <= FINE_SIGMA)) {
      throw new RangeError(`sigma must lie between 1/512 and ${FINE_SIGMA} times the radius, got ${relative} times`);
    }
    const steps = relative * 2 ** 8 <= COARSE_SIGMA ? leastPower(32 / relative, 2 ** 8) : fineSteps(relative);
    return new Gaussian(steps, noiseOnGrid(steps, relative * steps), box);
  }
}

/** Gaussian noise of `sigma` grid steps for boxes of `steps` from the centre to the edge. */
export function noiseOnGrid(steps: number, sigma: number): GaussianNoise {
  powerOfTwo("steps", steps, 2 ** 8, 2 ** 26);
  if (!(sigma >= 16 && sigma <= 2 ** 32) || (sigma > COARSE_SIGMA && sigma < FINE_SIGMA)) {
    throw new RangeError(`sigma must lie between 16 and 512 steps or from 2^17 on, got ${sigma}`);
  }
  return new GaussianNoise(sigma, 2 * steps);
}

function leastPower(bound: number, least: number): number {
  return Math.max(least, 2 ** Math.max(0, Math.ceil(Math.log2(bound))));
}

function fineSteps(relative: number): number {
  let steps = leastPower(FINE_SIGMA / relative, 1);
  while (steps < 2 ** 8 && steps * 32 <= 2 ** 26) steps *= 32;
  return steps;
}

/** What is sent as it is: where no protection is promised, or where training itself was private. */
export class Plain implements Mechanism {
  readonly name = "none";
  readonly loss: ValueLoss = { type: "Infinite", why: "values are sent as they are" };

  async randomise(values: Float32Array): Promise<Uint8Array<ArrayBuffer>> {
    if (!values.every((value) => Number.isFinite(value))) {
      throw new RangeError("values hold NaN or infinity: nothing was released");
    }
    return packReals(values);
  }

  read(bytes: Uint8Array): Float32Array {
    return unpackReals(bytes);
  }
}

function wholeNumber(name: string, value: number, low: number, high: number): void {
  if (!Number.isInteger(value) || value < low || value > high) {
    throw new RangeError(`${name} must be a whole number from ${low} to ${high}, got ${value}`);
  }
}

function powerOfTwo(name: string, value: number, low: number, high: number): void {
  wholeNumber(name, value, low, high);
  if (!Number.isInteger(Math.log2(value))) throw new RangeError(`${name} must be a power of two, got ${value}`);
}
