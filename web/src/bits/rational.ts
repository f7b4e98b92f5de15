/** Exact rational numbers, and exponentials of them in whole numbers: no rounding of a float decides a guarantee. */

export interface Rational {
  readonly n: bigint;
  /** above zero; no common factor with n */
  readonly d: bigint;
}

export function rational(n: bigint, d = 1n): Rational {
  if (d === 0n) throw new RangeError("a fraction cannot have the denominator 0");
  const sign = d < 0n ? -1n : 1n;
  const common = gcd(n < 0n ? -n : n, d * sign) || 1n;
  return { n: (sign * n) / common, d: (sign * d) / common };
}

function gcd(a: bigint, b: bigint): bigint {
  while (b) [a, b] = [b, a % b];
  return a;
}

/** The rational number that a float64 is. */
export function exactly(value: number): Rational {
  if (!Number.isFinite(value)) throw new RangeError(`only finite numbers are fractions, got ${value}`);
  let exponent = 0;
  while (!Number.isInteger(value)) {
    value *= 2;
    exponent += 1;
  }
  return rational(BigInt(value), 1n << BigInt(exponent));
}

export const multiply = (a: Rational, b: Rational): Rational => rational(a.n * b.n, a.d * b.d);
export const divide = (a: Rational, b: Rational): Rational => rational(a.n * b.d, a.d * b.n);

export function toNumber({ n, d }: Rational): number {
  const negative = n < 0n;
  const magnitude = negative ? -n : n;
  // 64 quotient bits or more, the last of them set where a rest remains: one rounding to 53 bits, and a correct one
  const shift = BigInt(Math.max(0, 64 + bitLength(d) - bitLength(magnitude)));
  const whole = (magnitude << shift) / d;
  const rest = whole * d === magnitude << shift ? 0n : 1n;
  const quotient = Number(whole | rest) * 2 ** -Number(shift);
  return negative ? -quotient : quotient;
}

export const bitLength = (value: bigint): number => (value === 0n ? 0 : value.toString(2).length);

/** a/b rounded down, for b > 0. */
export function floorDivide(a: bigint, b: bigint): bigint {
  const quotient = a / b;
  return a % b < 0n ? quotient - 1n : quotient;
}

/** a/b rounded up, for b > 0. */
export const ceilDivide = (a: bigint, b: bigint): bigint => -floorDivide(-a, b);

const BITS = 192;

/** Whole numbers [low, high] with low <= e^x 2^bits <= high, by a Taylor series and repeated squaring. */
export function exponentialBounds(x: Rational, bits = BITS): [bigint, bigint] {
  if (x.n < 0n) {
    const above = Number(ceilDivide(-x.n, x.d));
    const wide = bits + 3 * above + 8;
    const [low, high] = exponentialBounds({ n: -x.n, d: x.d }, wide);
    const one = 1n << BigInt(bits + wide);
    return [one / high, ceilDivide(one, low)];
  }
  const halvings = Math.max(0, bitLength(ceilDivide(x.n, x.d)) + 8);
  const work = BigInt(bits + 2 * halvings + Number(ceilDivide(x.n * 3n, x.d * 2n)) + 32);
  const step = rational(x.n, x.d << BigInt(halvings));
  let low = 1n << work;
  let high = low;
  let termLow = low;
  let termHigh = low;
  for (let k = 1n; termHigh > 1n; k += 1n) {
    termLow = (termLow * step.n) / (step.d * k);
    termHigh = ceilDivide(termHigh * step.n, step.d * k);
    low += termLow;
    high += termHigh;
  }
  high += 2n; // the rest of the series is below its last term, since step < 1/2
  for (let i = 0; i < halvings; i += 1) {
    low = (low * low) >> work;
    high = -((-(high * high)) >> work);
  }
  const drop = work - BigInt(bits);
  return [low >> drop, -((-high) >> drop)];
}

/** e^x 2^bits rounded down; exact to the last bit but one. */
export function exponential(x: Rational, bits = BITS): bigint {
  return x.n < -BigInt(bits) * x.d ? 0n : exponentialBounds(x, bits)[0];
}

/** ln(a/b) of two positive whole numbers, accurate also where they are nearly equal. */
export function logRatio(a: bigint, b: bigint): number {
  if (a < b) return -logRatio(b, a);
  if (a < 2n * b) return Math.log1p(toNumber(rational(a - b, b)));
  return logOf(a) - logOf(b);
}

function logOf(value: bigint): number {
  const excess = Math.max(0, bitLength(value) - 1000);
  return Math.log(Number(value >> BigInt(excess))) + excess * Math.LN2;
}
