/** Walker's alias method on whole numbers: one 64-bit lane draws from any table of weights that sum to 2^64, exactly. */

const TOTAL = 1n << 64n;

export class AliasTable {
  readonly weights: readonly bigint[];
  readonly #mask: number;
  readonly #low: Uint32Array;
  readonly #high: Uint32Array;
  readonly #alias: Uint32Array;

  constructor(weights: readonly bigint[]) {
    if (weights.reduce((sum, weight) => sum + weight, 0n) !== TOTAL || weights.some((weight) => weight < 0n)) {
      throw new RangeError("the weights of a table must be whole numbers >= 0 with sum 2^64");
    }
    this.weights = weights;
    const bits = Math.max(1, (weights.length - 1).toString(2).length * Number(weights.length > 1));
    const cells = 2 ** bits;
    const { threshold, alias } = fill(weights, bits);
    this.#mask = cells - 1;
    this.#low = Uint32Array.from(threshold, (t) => Number(t & 0xffffffffn));
    this.#high = Uint32Array.from(threshold, (t) => Number(t >> 32n));
    this.#alias = alias;
  }

  /** The index that a lane draws; the lane is given as its two words, the lower one first. */
  draw(low: number, high: number): number {
    const cell = low & this.#mask;
    const edge = this.#high[cell]!;
    return high < edge || (high === edge && low < this.#low[cell]!) ? cell : this.#alias[cell]!;
  }
}

/** Thresholds (shifted to the top of the lane) and aliases; cells are filled in ascending order of index. */
function fill(weights: readonly bigint[], bits: number): { threshold: bigint[]; alias: Uint32Array } {
  const cells = 2 ** bits;
  const capacity = TOTAL >> BigInt(bits);
  const left = [...weights, ...Array<bigint>(cells - weights.length).fill(0n)];
  const threshold = Array<bigint>(cells).fill(0n);
  const alias = Uint32Array.from({ length: cells }, (_, cell) => cell);
  const small: number[] = [];
  const large: number[] = [];
  for (let cell = cells - 1; cell >= 0; cell -= 1) {
    if (left[cell]! < capacity) small.push(cell);
    if (left[cell]! > capacity) large.push(cell);
  }
  while (small.length) {
    const i = small.pop()!;
    const j = large.at(-1)!;
    threshold[i] = left[i]! << BigInt(bits);
    alias[i] = j;
    left[j]! -= capacity - left[i]!;
    if (left[j]! <= capacity) {
      large.pop();
      if (left[j]! < capacity) small.push(j);
    }
  }
  return { threshold, alias };
}
