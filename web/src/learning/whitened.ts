/**
 * Whitening of whole vectors u `[maps, cells]` by a plan: z_p = L u_p - c for a whole matrix L and a whole vector c, then to
 * length 1, with an input for the bias, as a whole vector (docs/bits.md; sordino.learning.unit_vectors).
 */
import { exponentOf, powerOfTwo } from "../bits/discrete.ts";
import type { Whitening } from "../wire/task.ts";
import { FEATURE_BITS } from "./linear_head.ts";
import { aim, rint, roundWithin } from "./whole.ts";

/** L u - c of the vector at `first` in u, exactly: sums of whole numbers stay far below 2^53. */
export function whitenedBy({ left, centre }: Whitening, u: ArrayLike<number>, first: number, cells: number, found: Float64Array): void {
  const maps = centre.length;
  for (let i = 0; i < maps; i += 1) {
    const at = i * cells;
    found.fill(-centre[i]!, at, at + cells);
    for (let j = 0; j < maps; j += 1) {
      const factor = left[i * maps + j]!;
      if (factor === 0) continue;
      const from = first + j * cells;
      for (let p = 0; p < cells; p += 1) found[at + p]! += factor * u[from + p]!;
    }
  }
}

/** Whitened records as whole vectors of norm at most `limit`: a record is about whole/scale. */
export class WhitenedRecords {
  /** `[records, width]`, the input of the bias last */
  readonly whole: Int16Array;
  readonly scales: Float64Array;
  readonly width: number;
  /** of every record, before it is made whole */
  readonly length: number;
  readonly #fixed: Float64Array;
  readonly #rounded: Float64Array;
  readonly #aim: number;

  constructor(readonly count: number, readonly cells: number, readonly by: Whitening, readonly bias: number, readonly limit: number) {
    this.width = by.centre.length * cells + 1;
    this.whole = new Int16Array(count * this.width);
    this.scales = new Float64Array(count);
    this.length = Math.sqrt(1 + bias * bias);
    [this.#fixed, this.#rounded] = [new Float64Array(this.width), new Float64Array(this.width)];
    this.#aim = aim(limit, this.width);
  }

  /** Makes record i of the whole vector at `first` in u. */
  set(i: number, u: ArrayLike<number>, first: number): void {
    const [fixed, rounded, size] = [this.#fixed, this.#rounded, this.width - 1];
    whitenedBy(this.by, u, first, this.cells, fixed);
    let largest = 0;
    for (let j = 0; j < size; j += 1) largest = Math.max(largest, Math.abs(fixed[j]!));
    const power = powerOfTwo(FEATURE_BITS - exponentOf(largest));
    let squares = 0;
    for (let j = 0; j < size; j += 1) {
      const value = rint(fixed[j]! * power);
      fixed[j] = value;
      squares += value * value;
    }
    const norm = Math.sqrt(squares);
    const bias = rint(norm * this.bias);
    fixed[size] = bias;
    const factor = this.#aim / Math.max(Math.sqrt(squares + bias * bias), 1);
    const shorter = roundWithin(fixed, factor, this.limit, rounded);
    this.whole.set(rounded, i * this.width);
    this.scales[i] = factor * shorter * Math.max(norm, 1);
  }
}
