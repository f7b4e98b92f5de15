/**
 * Products of matrices of whole numbers in float64: exact, and so the same in any order, as long as sums stay below 2^53.
 */
import { type Tiles, tilesFor } from "./tiles.ts";

/** Matrices in one memory, and products of them. */
export class Workbench {
  /** as many numbers as were asked for */
  readonly arrays: Float64Array[];
  readonly #tiles: Tiles;
  readonly #eight: Float64Array;

  constructor(lengths: number[], make = tilesFor) {
    const { buffer, tiles } = make(lengths.reduce((sum, length) => sum + length, 8));
    this.#tiles = tiles;
    this.#eight = new Float64Array(buffer, 0, 8);
    let first = 64;
    this.arrays = lengths.map((length) => {
      const made = new Float64Array(buffer, first, length);
      first += made.byteLength;
      return made;
    });
  }

  /**
   * found [count, size] = rows [count, width] times the transpose of others [size, width]; rows and others lie in this memory,
   * and rows begin `pitch` numbers after one another.
   */
  multiply(rows: Float64Array, count: number, others: Float64Array, size: number, width: number, found: Float64Array, pitch = width): void {
    const [step, each, first, second, eight] = [8 * pitch, 8 * width, rows.byteOffset, others.byteOffset, this.#eight];
    for (let i = 0; i < count; i += 4) {
      // where fewer than four rows are left, or one of the others, the last is computed again
      const b = Math.min(i + 1, count - 1);
      const c = Math.min(i + 2, count - 1);
      const d = Math.min(i + 3, count - 1);
      for (let k = 0; k < size; k += 2) {
        const f = Math.min(k + 1, size - 1);
        this.#tiles.multiply(
          first + i * step, first + b * step, first + c * step, first + d * step, second + k * each, second + f * each, width, eight.byteOffset,
        );
        found[i * size + k] = eight[0]!;
        found[b * size + k] = eight[1]!;
        found[c * size + k] = eight[2]!;
        found[d * size + k] = eight[3]!;
        found[i * size + f] = eight[4]!;
        found[b * size + f] = eight[5]!;
        found[c * size + f] = eight[6]!;
        found[d * size + f] = eight[7]!;
      }
    }
  }

  /** sum [size, width] += the transpose of parts [count, size] times rows [count, width]; sum and rows lie in this memory. */
  addTransposed(sum: Float64Array, parts: Float64Array, size: number, rows: Float64Array, count: number, width: number): void {
    const [each, first, second, eight] = [8 * width, rows.byteOffset, sum.byteOffset, this.#eight];
    for (let i = 0; i < count; i += 4) {
      const row = (number: number): number => first + Math.min(i + number, count - 1) * each;
      for (let k = 0; k < size; k += 2) {
        const f = Math.min(k + 1, size - 1);
        for (let own = 0; own < 4; own += 1) {
          const at = (i + own) * size + k;
          eight[own] = i + own < count ? parts[at]! : 0;
          eight[4 + own] = i + own < count && k + 1 < size ? parts[at + 1]! : 0;
        }
        this.#tiles.add(row(0), row(1), row(2), row(3), second + k * each, second + f * each, width, eight.byteOffset);
      }
    }
  }
}

/** Records [count, maps, cells] at `first` in u as one matrix [maps, count * cells]. */
export function sideBySide(u: ArrayLike<number>, first: number, count: number, maps: number, cells: number, found: Float64Array): void {
  let at = first;
  for (let record = 0; record < count; record += 1) {
    for (let map = 0; map < maps; map += 1) {
      const to = (map * count + record) * cells;
      for (let p = 0; p < cells; p += 1, at += 1) found[to + p] = u[at]!;
    }
  }
}

/** How many records of so many cells stand side by side: as many as stay in a processor's cache. */
export const besideEachOther = (cells: number): number => Math.max(1, Math.floor(1024 / cells));
