/**
 * Second moments of whole vectors u `[maps, cells]` of norm at most `limit`: A = sum over records and cells of u_p u_p^T, of
 * which the upper triangle says all, and m = the sum of u_p times the factor limit/sqrt(cells), rounded down.
 *
 * A record's A is positive semidefinite with trace |u|^2, so that its norm is at most limit^2, and its part of m is at most
 * factor * sqrt(cells) * |u| <= limit^2 long: both together move by sqrt(2) limit^2.
 */
/** How many numbers A's upper triangle and m have. */
export const momentsOf = (maps: number): number => (maps * (maps + 1)) / 2 + maps;

/** By how much one record moves A and m together, at most: an L2 norm. */
export const momentsSensitivity = (limit: number): number => Math.sqrt(2) * limit * limit * (1 + 2 ** -50);

/** What sums over cells are multiplied by in m; 0 where vectors are too short. */
export const meanFactor = (limit: number, cells: number): number => Math.floor(Math.sqrt(Math.floor((limit * limit) / cells)));

export class SecondMoments {
  /** A's upper triangle with its diagonal, row by row, then m */
  readonly sums: Float64Array;
  readonly #factor: number;

  constructor(readonly maps: number, readonly cells: number, limit: number) {
    this.sums = new Float64Array(momentsOf(maps));
    this.#factor = meanFactor(limit, cells);
  }

  /** Adds the vector at `first` in u. */
  add(u: ArrayLike<number>, first = 0): void {
    const { maps, cells, sums } = this;
    let at = 0;
    for (let i = 0; i < maps; i += 1) {
      for (let j = i; j < maps; j += 1, at += 1) {
        let sum = 0;
        const [own, other] = [first + i * cells, first + j * cells];
        for (let p = 0; p < cells; p += 1) sum += u[own + p]! * u[other + p]!;
        sums[at]! += sum;
      }
    }
    for (let i = 0; i < maps; i += 1, at += 1) {
      let sum = 0;
      for (let p = 0; p < cells; p += 1) sum += u[first + i * cells + p]!;
      sums[at]! += sum * this.#factor;
    }
  }
}
