/**
 * Second moments of whole vectors u `[maps, cells]` of norm at most `limit`: A = sum over records and cells of u_p u_p^T, of
 * which the upper triangle says all, and m = the sum of u_p times the factor limit/sqrt(cells), rounded down.
 *
 * A record's A is positive semidefinite with trace |u|^2, so that its norm is at most limit^2, and its part of m is at most
 * factor * sqrt(cells) * |u| <= limit^2 long: both together move by sqrt(2) limit^2. Limits are below 2^15. Sums are kept
 * modulo 2^52, for any number of records.
 */
import { Workbench, besideEachOther, sideBySide } from "./products.ts";
import { UNREDUCED, reduce } from "./whole.ts";

/** How many numbers A's upper triangle and m have. */
export const momentsOf = (maps: number): number => (maps * (maps + 1)) / 2 + maps;

/** By how much one record moves A and m together, at most: an L2 norm. */
export const momentsSensitivity = (limit: number): number => Math.sqrt(2) * limit * limit * (1 + 2 ** -50);

/** What sums over cells are multiplied by in m; 0 where vectors are too short. */
export const meanFactor = (limit: number, cells: number): number => Math.floor(Math.sqrt(Math.floor((limit * limit) / cells)));

/** Rows of A that are computed together. */
const ROWS = 4;

export class SecondMoments {
  readonly #square: Float64Array;
  readonly #means: Float64Array;
  readonly #factor: number;
  /** records that were added since sums were reduced */
  #added = 0;
  readonly #bench: Workbench;
  // of the records at hand
  readonly #beside: Float64Array;
  readonly #rows: Float64Array;

  constructor(readonly maps: number, readonly cells: number, limit: number) {
    this.#factor = meanFactor(limit, cells);
    [this.#square, this.#means] = [new Float64Array(maps * maps), new Float64Array(maps)];
    this.#bench = new Workbench([maps * cells * besideEachOther(cells), ROWS * maps]);
    [this.#beside, this.#rows] = this.#bench.arrays as [Float64Array, Float64Array];
  }

  /** Adds so many vectors, from `first` in u on. */
  add(u: ArrayLike<number>, first = 0, count = 1): void {
    const most = besideEachOther(this.cells);
    for (let done = 0; done < count; done += most) this.#addSome(u, first + done * this.maps * this.cells, Math.min(most, count - done));
  }

  /** A's upper triangle with its diagonal, row by row, then m, modulo 2^52. */
  get sums(): Float64Array {
    this.#reduce();
    const { maps } = this;
    const found = new Float64Array(momentsOf(maps));
    let at = 0;
    for (let i = 0; i < maps; i += 1) for (let j = i; j < maps; j += 1, at += 1) found[at] = this.#square[i * maps + j]!;
    for (let i = 0; i < maps; i += 1, at += 1) found[at] = this.#means[i]!;
    return found;
  }

  #addSome(u: ArrayLike<number>, first: number, count: number): void {
    const { maps, cells } = this;
    const [beside, rows, columns] = [this.#beside, this.#rows, count * cells];
    sideBySide(u, first, count, maps, cells, beside);
    for (let i = 0; i < maps; i += ROWS) {
      const [from, left] = [beside.subarray(i * columns), maps - i];
      const high = Math.min(ROWS, left);
      this.#bench.multiply(from, high, from, left, columns, rows);
      for (let row = 0; row < high; row += 1) {
        for (let j = 0; j < left; j += 1) this.#square[(i + row) * maps + i + j]! += rows[row * left + j]!;
      }
    }
    for (let i = 0; i < maps; i += 1) {
      let sum = 0;
      for (let p = 0; p < columns; p += 1) sum += beside[i * columns + p]!;
      this.#means[i]! += sum * this.#factor;
    }
    this.#added += count;
    if (this.#added >= UNREDUCED) this.#reduce();
  }

  #reduce(): void {
    reduce(this.#square);
    reduce(this.#means);
    this.#added = 0;
  }
}
