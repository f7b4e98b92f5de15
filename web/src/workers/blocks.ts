/** Records as they are read, in blocks: an array for all would end where a browser's arrays end, before its memory does. */
export interface Block {
  /** values, record after record, as the task's input has them */
  x: Float32Array<ArrayBuffer>;
  y: Int32Array<ArrayBuffer>;
}

/** values of a block */
const VALUES = 2 ** 22;

export class Blocks {
  readonly #size: number;
  /** records of a block */
  readonly #each: number;
  readonly #blocks: Block[] = [];
  #count = 0;

  /** For records of `size` values each. */
  constructor(size: number, values = VALUES) {
    this.#size = size;
    this.#each = Math.max(1, Math.floor(values / size));
  }

  add(values: Float32Array, label: number): void {
    const place = this.#count % this.#each;
    if (place === 0) this.#blocks.push({ x: new Float32Array(this.#each * this.#size), y: new Int32Array(this.#each) });
    const { x, y } = this.#blocks.at(-1)!;
    x.set(values, place * this.#size);
    y[place] = label;
    this.#count += 1;
  }

  /** All blocks, full but for the last. */
  end(): Block[] {
    const [last, rest] = [this.#blocks.at(-1), this.#count % this.#each];
    if (last && rest) Object.assign(last, { x: last.x.slice(0, rest * this.#size), y: last.y.slice(0, rest) });
    return this.#blocks;
  }
}
