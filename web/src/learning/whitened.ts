/**
 * Whitening of whole vectors u `[maps, cells]` by a plan: z_p = L u_p - c for a whole matrix L and a whole vector c, then to
 * length 1, with an input for the bias, as a whole vector (docs/bits.md; sordino.learning.unit_vectors).
 */
import { exponentOf, powerOfTwo } from "../bits/discrete.ts";
import type { Whitening } from "../wire/task.ts";
import { FEATURE_BITS } from "./linear_head.ts";
import { Workbench, besideEachOther, sideBySide } from "./products.ts";
import { aim, rint, roundWithin } from "./whole.ts";

/** L u - c of up to `most` vectors u `[maps, cells]` at a time: exact, as sums of whole numbers stay far below 2^53. */
export class Whitener {
  readonly #bench: Workbench;
  /** `[maps, vectors * cells]` */
  readonly #u: Float64Array;
  readonly #white: Float64Array;
  /** L, transposed */
  readonly #left: Float64Array;

  constructor(readonly by: Whitening, readonly cells: number, most = besideEachOther(cells)) {
    const maps = by.centre.length;
    this.#bench = new Workbench([maps * cells * most, maps * cells * most]);
    [this.#u, this.#white] = this.#bench.arrays as [Float64Array, Float64Array];
    this.#left = new Float64Array(maps * maps);
    for (let i = 0; i < maps; i += 1) for (let j = 0; j < maps; j += 1) this.#left[j * maps + i] = by.left[i * maps + j]!;
  }

  /** Takes so many vectors, from `first` in u on. */
  take(u: ArrayLike<number>, first: number, count: number): void {
    const [{ centre }, columns] = [this.by, count * this.cells];
    sideBySide(u, first, count, centre.length, this.cells, this.#u);
    centre.forEach((value, i) => this.#white.fill(-value, i * columns, (i + 1) * columns));
    this.#bench.addTransposed(this.#white, this.#left, centre.length, this.#u, centre.length, columns);
  }

  /** Copies the i-th of the `count` vectors that were taken. */
  copy(i: number, count: number, found: Float64Array): void {
    const [{ cells }, white] = [this, this.#white];
    for (let map = 0; map < this.by.centre.length; map += 1) {
      const from = (map * count + i) * cells;
      for (let p = 0; p < cells; p += 1) found[map * cells + p] = white[from + p]!;
    }
  }
}

/** Whitened records as whole vectors of norm at most `limit`: a record is about whole/scale. */
export class WhitenedRecords {
  /** `[count, width]`, the input of the bias last */
  readonly whole: Int16Array;
  readonly scales: Float64Array;
  readonly width: number;
  /** of every record, before it is made whole */
  readonly length: number;
  readonly #fixed: Float64Array;
  readonly #rounded: Float64Array;
  readonly #aim: number;

  constructor(readonly count: number, readonly whitener: Whitener, readonly bias: number, readonly limit: number) {
    this.width = whitener.by.centre.length * whitener.cells + 1;
    [this.whole, this.scales] = [new Int16Array(count * this.width), new Float64Array(count)];
    this.length = Math.sqrt(1 + bias * bias);
    [this.#fixed, this.#rounded] = [new Float64Array(this.width), new Float64Array(this.width)];
    this.#aim = aim(limit, this.width);
  }

  /** Makes so many records, from the i-th on, of the whole vectors from `first` in u on. */
  set(i: number, u: ArrayLike<number>, first: number, count = 1): void {
    const most = besideEachOther(this.whitener.cells);
    for (let done = 0; done < count; done += most) {
      const some = Math.min(most, count - done);
      this.whitener.take(u, first + done * (this.width - 1), some);
      for (let record = 0; record < some; record += 1) {
        this.whitener.copy(record, some, this.#fixed);
        this.#setFixed(i + done + record);
      }
    }
  }

  /** Makes record i of the whitened vector at hand. */
  #setFixed(i: number): void {
    const [fixed, rounded, size] = [this.#fixed, this.#rounded, this.width - 1];
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
