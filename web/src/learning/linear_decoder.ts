/** Values from noisy vectors, by a linear decoder that is fitted to public examples (as sordino.audits.linear_decoder). */

/** the least strength of the ridge, in units of the mean square of an example: of 1e-5 to 0.3 the best on 60 of 300 digits */
const LEAST_STRENGTH = 0.03;

/** Ridge regression in its dual form: as many equations as there are examples, whatever the length of the vectors. */
export class LinearDecoder {
  readonly #count: number;
  readonly #centre: Float64Array;
  readonly #level: Float64Array;
  /** `[examples, length]`, less their means */
  readonly #seen: Float64Array;
  readonly #values: Float64Array;
  /** `[examples, examples]` */
  readonly #products: Float64Array;

  /** From what is seen of examples `[count, length]` to their values `[count, size]`. */
  constructor(seen: ArrayLike<number>, values: ArrayLike<number>, count: number) {
    this.#count = count;
    [this.#centre, this.#level] = [meanOf(seen, count), meanOf(values, count)];
    [this.#seen, this.#values] = [less(seen, this.#centre), less(values, this.#level)];
    const width = this.#centre.length;
    this.#products = new Float64Array(count * count);
    for (let i = 0; i < count; i += 1) {
      for (let k = 0; k <= i; k += 1) {
        let sum = 0;
        for (let j = 0; j < width; j += 1) sum += this.#seen[i * width + j]! * this.#seen[k * width + j]!;
        this.#products[i * count + k] = this.#products[k * count + i] = sum;
      }
    }
  }

  /** The values of a vector with noise of such a variance: the more noise, the nearer to the mean of all examples. */
  decode(vector: ArrayLike<number>, variance: number): Float64Array {
    const [count, width, size] = [this.#count, this.#centre.length, this.#level.length];
    const system = this.#products.slice();
    let trace = 0;
    for (let i = 0; i < count; i += 1) trace += system[i * (count + 1)]!;
    for (let i = 0; i < count; i += 1) system[i * (count + 1)]! += count * variance + (LEAST_STRENGTH * trace) / count;
    const near = new Float64Array(count);
    for (let i = 0; i < count; i += 1) {
      for (let j = 0; j < width; j += 1) near[i]! += this.#seen[i * width + j]! * (vector[j]! - this.#centre[j]!);
    }
    solve(system, near);
    const found = this.#level.slice();
    for (let i = 0; i < count; i += 1) for (let j = 0; j < size; j += 1) found[j]! += near[i]! * this.#values[i * size + j]!;
    return found;
  }
}

function meanOf(rows: ArrayLike<number>, count: number): Float64Array {
  const width = rows.length / count;
  const mean = new Float64Array(width);
  for (let i = 0; i < rows.length; i += 1) mean[i % width]! += rows[i]! / count;
  return mean;
}

const less = (rows: ArrayLike<number>, mean: Float64Array): Float64Array =>
  Float64Array.from(rows, (value, i) => value - mean[i % mean.length]!);

/** Makes b the solution of a x = b, for a symmetric positive definite matrix, which is used up (Cholesky). */
export function solve(a: Float64Array, b: Float64Array): void {
  const n = b.length;
  for (let i = 0; i < n; i += 1) {
    for (let k = 0; k <= i; k += 1) {
      let sum = a[i * n + k]!;
      for (let j = 0; j < k; j += 1) sum -= a[i * n + j]! * a[k * n + j]!;
      a[i * n + k] = i === k ? Math.sqrt(sum) : sum / a[k * (n + 1)]!;
    }
  }
  for (let i = 0; i < n; i += 1) {
    for (let j = 0; j < i; j += 1) b[i]! -= a[i * n + j]! * b[j]!;
    b[i]! /= a[i * (n + 1)]!;
  }
  for (let i = n - 1; i >= 0; i -= 1) {
    for (let j = i + 1; j < n; j += 1) b[i]! -= a[j * n + i]! * b[j]!;
    b[i]! /= a[i * (n + 1)]!;
  }
}
