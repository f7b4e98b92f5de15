/** Vectors of whole numbers within a ball, value by value the same as Python's (docs/bits.md, "DP-SGD on whole numbers"). */

/** 1.5 * 2^52: numbers of this size have steps of 1, so that adding it rounds */
const WHOLE = 6755399441055744;
/** attempts to round a vector so that it is not too long */
const ATTEMPTS = 12;

/** The nearest whole number, ties to even, for |x| <= 2^51. */
export const rint = (x: number): number => x + WHOLE - WHOLE;

/** Sums over records are kept modulo 2^52: every modulus of a report divides it, and a float64 holds them and some more exactly. */
export const SUM_BITS = 52;

/** Records that are added before sums are reduced: each adds at most 2^30 to a value, a product of norms up to 2^15. */
export const UNREDUCED = 2 ** 20;

/** Reduces sums modulo 2^52, around zero. */
export function reduce(sums: Float64Array): void {
  for (let i = 0; i < sums.length; i += 1) sums[i] = wrapped(sums[i]!, SUM_BITS);
}

/** A whole number modulo 2^bits, around zero: exactly, however large the number is. */
export function wrapped(value: number, bits: number): number {
  const modulus = 2 ** bits;
  return value - modulus * Math.round(value / modulus);
}

/** The norm to scale a vector to before it is rounded, so that it rarely gets longer than `limit` by that. */
export function aim(limit: number, width: number): number {
  return Math.sqrt(Math.max(limit * limit - width / 12 - 2 * limit, (limit * limit) / 4));
}

/**
 * Rounds `values * factor` into `whole`, with an L2 norm of at most `limit`, and gives back what it was scaled by for that.
 * What is too long once rounded is shortened and rounded again, at last cut off towards zero, and 0 if even that is not
 * within the limit, or not a number. Norms are compared in whole numbers.
 */
export function roundWithin(values: Float64Array, factor: number, limit: number, whole: Float64Array): number {
  let squares = 0;
  for (let i = 0; i < values.length; i += 1) {
    const value = rint(values[i]! * factor);
    whole[i] = value;
    squares += value * value;
  }
  let scale = 1;
  for (let attempt = 0; !(squares <= limit * limit); attempt += 1) {
    const cut = attempt === ATTEMPTS;
    if (!cut) scale *= (limit / Math.sqrt(squares)) * (1 - 2 ** (attempt - ATTEMPTS));
    squares = 0;
    for (let i = 0; i < values.length; i += 1) {
      const scaled = values[i]! * factor * scale;
      const value = cut ? Math.trunc(scaled) : rint(scaled);
      whole[i] = value;
      squares += value * value;
    }
    if (cut && !(squares <= limit * limit)) {
      whole.fill(0);
      return 1;
    }
  }
  return scale;
}

/**
 * A gradient as whole numbers with an L2 norm of at most `steps`; one of length `clip` has `steps` grid steps, and one that is
 * not finite becomes 0. Gives back its norm.
 */
export function wholeGradient(gradient: Float64Array, clip: number, steps: number, whole: Float64Array): number {
  let squares = 0;
  for (let i = 0; i < gradient.length; i += 1) squares += gradient[i]! * gradient[i]!;
  const norm = Math.sqrt(squares);
  if (Number.isFinite(norm)) roundWithin(gradient, norm > clip ? aim(steps, gradient.length) / norm : steps / clip, steps, whole);
  else whole.fill(0);
  return norm;
}
