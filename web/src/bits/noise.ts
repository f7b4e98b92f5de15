/** Integer-valued noise from integer tables (docs/bits.md): two-sided geometric (discrete Laplace) and Gaussian. */
import { AliasTable } from "./alias.ts";
import {
  type Rational, ceilDivide, divide, exactly, exponential, floorDivide, logRatio, multiply, rational, toNumber,
} from "./rational.ts";

const TOTAL = 1n << 64n;
const ONE = 1n << 32n;
const BITS = 192;
const DIGIT_BITS = 12;
const TOP_SIZE = 2 ** 14;

/** Whole-number noise that takes `wordsPerValue` words of the keystream for each value. */
export interface Noise {
  readonly wordsPerValue: number;
  /** The noise of the value whose words begin at `at`. */
  draw(words: Uint32Array, at: number): number;
}

// --- geometric --------------------------------------------------------------------------------------------------------

interface Digit {
  /** value a stands for a * 2^shift */
  readonly shift: number;
  readonly table: AliasTable;
  /** how far ln(weight) strays from a straight line in a, at most */
  readonly slack: number;
  /** ln(2^64 / smallest weight) */
  readonly cap: number;
}

export class GeometricNoise implements Noise {
  readonly wordsPerValue: number;
  readonly digits: readonly Digit[];
  readonly negative: number;
  /** the magnitude from which on the last value of the top digit stands for all that is larger */
  readonly tail: number;

  /** A top digit of `top` values, the last of which stands for the whole rest, and the digits below its shift. */
  constructor(readonly rate: Rational, shift: number, top: number) {
    const digits = [digit(rate, shift, top, "with the tail")];
    for (let low = Math.floor((shift - 1) / DIGIT_BITS) * DIGIT_BITS; low >= 0; low -= DIGIT_BITS) {
      digits.push(digit(rate, low, 2 ** Math.min(DIGIT_BITS, shift - low), "alone"));
    }
    const odds = exponential(rational(-rate.n, rate.d), BITS);
    this.digits = digits;
    this.tail = (top - 1) * 2 ** shift;
    this.negative = Math.max(1, Number(roundHalfEven(odds * ONE, odds + (1n << BigInt(BITS)))));
    this.wordsPerValue = 2 * (1 + digits.length);
  }

  /** Tables for magnitudes 0 .. reach - 1 at least. */
  static reaching(rate: Rational, reach: number): GeometricNoise {
    let shift = 0;
    while (Math.ceil(reach / 2 ** shift) > TOP_SIZE) shift += 1;
    return new GeometricNoise(rate, shift, Math.ceil(reach / 2 ** shift) + 1);
  }

  draw(words: Uint32Array, at: number): number {
    let magnitude = 0;
    let lane = at;
    for (const { shift, table } of this.digits) {
      lane += 2;
      magnitude += table.draw(words[lane]!, words[lane + 1]!) * 2 ** shift;
    }
    return words[at]! < this.negative ? -magnitude - 1 : magnitude;
  }

  /** A bound on ln Pr[k]/Pr[k'] (or of the tails from k and k' on) over all k, k' at most `shift` apart. */
  loss(shift: number): number {
    const below = BigInt(this.negative);
    const odds = logRatio(below, ONE - below) + toNumber(this.rate);
    const slack = this.digits.reduce((sum, each) => sum + each.slack, 0) + Math.abs(odds) + 1e-13;
    const sign = logRatio(ONE, below < ONE - below ? below : ONE - below);
    const cap = this.digits.reduce((sum, each) => sum + each.cap, 0) + sign + 1e-12;
    return Math.min(toNumber(multiply(this.rate, rational(BigInt(shift)))) + slack, cap);
  }
}

function digit(rate: Rational, shift: number, size: number, last: "with the tail" | "alone"): Digit {
  const one = 1n << BigInt(BITS);
  const slope = multiply(rate, rational(1n << BigInt(shift)));
  const ratio = exponential(rational(-slope.n, slope.d), BITS);
  const shape = [one];
  for (let a = 1; a < size; a += 1) shape.push((shape[a - 1]! * ratio) >> BigInt(BITS));
  if (last === "with the tail") {
    const rest = one - ratio;
    const lumped = (shape[size - 1]! << BigInt(BITS)) / (rest > 1n ? rest : 1n);
    const most = BigInt(size) << BigInt(BITS);
    shape[size - 1] = lumped < most ? lumped : most;
  }
  const weights = toTotal(shape);
  const fall = toNumber(slope);
  const straight = weights.map((weight, a) => Math.log(Number(weight)) + fall * a);
  if (last === "with the tail") straight[size - 1]! += Math.log(-Math.expm1(-fall));
  const [least, most] = straight.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], [Infinity, -Infinity]);
  const smallest = weights.reduce((least, weight) => (weight < least ? weight : least));
  return { shift, table: new AliasTable(weights), slack: most - least + 1e-14, cap: logRatio(TOTAL, smallest) };
}

/** Whole weights >= 1 in proportion to the shape that sum to 2^64; the largest takes up the rounding. */
function toTotal(shape: bigint[]): bigint[] {
  const total = shape.reduce((sum, each) => sum + each, 0n);
  const weights = shape.map((each) => {
    const weight = (2n * each * TOTAL + total) / (2n * total);
    return weight > 1n ? weight : 1n;
  });
  let largest = 0;
  weights.forEach((weight, i) => {
    if (weight > weights[largest]!) largest = i;
  });
  weights[largest]! += TOTAL - weights.reduce((sum, each) => sum + each, 0n);
  return weights;
}

function roundHalfEven(a: bigint, b: bigint): bigint {
  const quotient = a / b;
  const twice = 2n * (a - quotient * b);
  return twice > b || (twice === b && quotient % 2n === 1n) ? quotient + 1n : quotient;
}

// --- Gaussian ---------------------------------------------------------------------------------------------------------

const LEVEL = 32;
export const COARSE_SIGMA = 512;
export const FINE_SIGMA = 2 ** 17;

export class GaussianNoise implements Noise {
  readonly wordsPerValue: number;
  readonly levels: number;
  readonly table: AliasTable;
  /** index of the table's central weight */
  readonly offset: number;
  /** the largest possible |noise| */
  readonly reach: number;
  /** for inputs `shift` apart, delta(eps) <= delta of the Gaussian of `provenSigma` at (eps - eta), plus tau */
  readonly eta: number;
  readonly tau: number;

  constructor(readonly sigma: number, shift: number) {
    const distance = shift / sigma;
    if (sigma <= COARSE_SIGMA) {
      this.levels = 1;
      this.offset = shift + Math.ceil(9.6 * sigma);
      const { table, short } = gaussianTable(roundedGaussian(exactly(sigma), this.offset));
      this.table = table;
      this.eta = short;
      this.tau = (2 * (2 * this.offset + 1)) / 2 ** 64;
    } else {
      let levels = 3;
      while (sigma >= 2 * FINE_SIGMA * LEVEL ** (levels - 3)) levels += 1;
      let squares = 0;
      for (let i = 0; i < levels; i += 1) squares += LEVEL ** (2 * i);
      const base = sigma / Math.sqrt(squares);
      this.levels = levels;
      this.offset = Math.ceil((10.5 + distance) * base);
      const { table, short } = gaussianTable(bell(rateOf(exactly(base)), this.offset));
      this.table = table;
      const z = 10 + distance;
      const rounding = (2 * (z ** 4 / 2880 + z ** 2 / 150 + 1)) / sigma ** 4;
      this.eta = 2 * rounding + levels * short + 2 ** -58;
      this.tau = 2 * rounding + (2 * levels * (2 * this.offset + 1)) / 2 ** 64 + 1.5239706048321186e-23; // erfc(10/sqrt 2)
    }
    let places = 0;
    for (let i = 0; i < this.levels; i += 1) places += LEVEL ** i;
    this.reach = this.offset * places;
    this.wordsPerValue = 2 * this.levels;
  }

  /** Of the Gaussian whose rounding to whole steps this is: rounding adds a twelfth to the variance. */
  get provenSigma(): number {
    return this.levels === 1 ? this.sigma : Math.sqrt(this.sigma ** 2 - 1 / 12);
  }

  draw(words: Uint32Array, at: number): number {
    let noise = 0;
    for (let level = this.levels - 1; level >= 0; level -= 1) {
      const lane = at + 2 * level;
      noise = noise * LEVEL + this.table.draw(words[lane]!, words[lane + 1]!);
    }
    return noise - this.reach;
  }
}

/** A table with every weight rounded up but the central one, and ln(ideal/weight) of that one. */
function gaussianTable(shape: bigint[]): { table: AliasTable; short: number } {
  const half = shape.slice(1);
  const total = shape[0]! + 2n * half.reduce((sum, each) => sum + each, 0n);
  const side = half.map((each) => ceilDivide(each * TOTAL, total) + 1n);
  const centre = TOTAL - 2n * side.reduce((sum, each) => sum + each, 0n);
  const ideal = ceilDivide(shape[0]! * TOTAL, total);
  return { table: new AliasTable([...side.toReversed(), centre, ...side]), short: logRatio(ideal, centre) };
}

/** The rate of e^(-k^2 / (2 sigma^2)). */
const rateOf = (sigma: Rational): Rational => divide(rational(1n, 2n), multiply(sigma, sigma));

/** e^(-rate k^2) for k = 0 .. reach in fixed point. */
export function bell(rate: Rational, reach: number): bigint[] {
  const bits = 256;
  const decay = exponential(rational(-2n * rate.n, rate.d), bits);
  let step = exponential(rational(-rate.n, rate.d), bits);
  const shape = [1n << BigInt(bits)];
  for (let k = 0; k < reach; k += 1) {
    shape.push((shape[k]! * step) >> BigInt(bits));
    step = (step * decay) >> BigInt(bits);
  }
  return shape;
}

/**
 * The integral of the Gaussian density over [k - 1/2, k + 1/2], up to a common factor, for k = 0 .. reach: the density's
 * Taylor series around k, integrated, phi(k) * sum_j He_2j(k/sigma) / (sigma^2j (2j+1)! 4^j).
 */
function roundedGaussian(sigma: Rational, reach: number): bigint[] {
  const bits = 160n;
  const square = multiply(sigma, sigma);
  const inverse = roundHalfEven(square.d << bits, square.n);
  const tenSigma = Number(ceilDivide(10n * sigma.n, sigma.d));
  const shape = bell(rateOf(sigma), Math.min(reach, tenSigma)).map((density, k) => {
    const slope = inverse * BigInt(k);
    let before = 0n; // He_(n-1)/sigma^(n-1)
    let here = 1n << bits; // He_n/sigma^n
    let factor = 1n << bits;
    let scale = 1n;
    let last: [bigint, bigint] = [1n, 1n];
    for (let n = 0n; last[0] !== 0n || last[1] !== 0n; ) {
      // a single zero term may be a root of He
      [before, here] = [here, (slope * here - n * inverse * before) >> bits];
      n += 1n;
      if (n % 2n === 0n) {
        scale *= 4n * n * (n + 1n);
        const term = here >= 0n ? here / scale : -floorDivide(-here, scale);
        last = [last[1], term];
        factor += term;
      }
    }
    return (density * factor) >> bits;
  });
  return [...shape, ...Array<bigint>(reach + 1 - shape.length).fill(0n)];
}

/** 2^32 (Phi(a) - 1/2) at a = ratio (k + 1/2)/(bins + 1/2) for k = 0 .. bins, rounded towards zero, below 2^31. */
export function normalThresholds(ratio: number, bins: number): number[] {
  const sigma = divide(rational(BigInt(2 * bins + 1), 2n), exactly(ratio));
  // A lattice of step 1/8 gives sqrt(2 pi) to e^(-2 pi^2 64): no series for pi is needed.
  const lattice = bell(rateOf(rational(8n)), 160);
  const root = rational(lattice.reduce((sum, each) => sum + 2n * each, -lattice[0]!), 8n << 256n);
  const total = multiply(multiply(sigma, root), rational(1n << 256n));
  let twice = 0n; // twice the area
  return roundedGaussian(sigma, bins).map((cell, k) => {
    twice += k === 0 ? cell : 2n * cell;
    return Math.min(2 ** 31 - 1, Number(floorDivide(twice * ONE * total.d, 2n * total.n)));
  });
}
