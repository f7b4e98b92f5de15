/** Records in blocks: no array is as long as all of them, so that nothing but memory limits their number. */
export class Records {
  readonly #blocks: { x: Float32Array; y: ArrayLike<number> }[] = [];
  #count = 0;

  /** Records of `size` values each. */
  constructor(readonly size: number, x: Float32Array = new Float32Array(), y: ArrayLike<number> = []) {
    this.add(x, y);
  }

  get count(): number {
    return this.#count;
  }

  /** Adds a block; each has as many records as the first, but the last may have fewer. */
  add(x: Float32Array, y: ArrayLike<number>): void {
    if (y.length === 0) return;
    this.#blocks.push({ x, y });
    this.#count += y.length;
  }

  /** A record's label, and its values: `size` of x from `first` on. */
  at(record: number): { x: Float32Array; first: number; label: number } {
    const each = this.#blocks[0]!.y.length;
    const { x, y } = this.#blocks[Math.floor(record / each)]!;
    return { x, first: (record % each) * this.size, label: y[record % each]! };
  }
}
