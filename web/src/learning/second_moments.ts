/**
 * Second moments of whole vectors u `[maps, cells]`, in whole numbers: over the maps, A = sum of u u^T `[maps, maps]`, and over
 * the cells, S = sum of u^T u `[cells, cells]`. Both are symmetric: their upper triangles say all.
 */

export class SecondMoments {
  /** A's upper triangle with its diagonal, row by row, then that of S */
  readonly sums: Float64Array;

  constructor(readonly maps: number, readonly cells: number) {
    this.sums = new Float64Array(triangle(maps) + triangle(cells));
  }

  add(u: ArrayLike<number>): void {
    const { maps, cells, sums } = this;
    let at = 0;
    for (let i = 0; i < maps; i += 1) {
      for (let j = i; j < maps; j += 1, at += 1) {
        let sum = 0;
        for (let p = 0; p < cells; p += 1) sum += u[i * cells + p]! * u[j * cells + p]!;
        sums[at]! += sum;
      }
    }
    for (let map = 0; map < maps; map += 1) {
      at = triangle(maps);
      for (let p = map * cells; p < (map + 1) * cells; p += 1) {
        const value = u[p]!;
        for (let q = p; q < (map + 1) * cells; q += 1, at += 1) sums[at]! += value * u[q]!;
      }
    }
  }
}

const triangle = (side: number): number => (side * (side + 1)) / 2;
