/** How outputs become bytes (docs/bits.md, Encoding). */

/** 8 bits to a byte, least significant first, padding zero. */
export function packBits(bits: ArrayLike<boolean | number>): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(Math.ceil(bits.length / 8));
  for (let i = 0; i < bits.length; i += 1) if (bits[i]) bytes[i >> 3]! |= 1 << (i & 7);
  return bytes;
}

/** Bytes that hold a whole number in [low, high] less low. */
export function integerWidth(low: number, high: number): number {
  let width = 1;
  while (2 ** (8 * width) <= high - low) width += 1;
  return width;
}

/** value - low, little-endian, in the fewest whole bytes that hold high - low. */
export function packIntegers(values: ArrayLike<number>, low: number, high: number): Uint8Array<ArrayBuffer> {
  const width = integerWidth(low, high);
  const bytes = new Uint8Array(values.length * width);
  for (let i = 0; i < values.length; i += 1) {
    let left = values[i]! - low;
    if (!(left >= 0 && left <= high - low)) throw new RangeError(`${values[i]} lies outside [${low}, ${high}]`);
    for (let k = 0; k < width; k += 1) {
      bytes[i * width + k] = left % 256;
      left = Math.floor(left / 256);
    }
  }
  return bytes;
}

/** float32, little-endian. */
export function packReals(values: ArrayLike<number>): Uint8Array<ArrayBuffer> {
  const view = new DataView(new ArrayBuffer(4 * values.length));
  for (let i = 0; i < values.length; i += 1) view.setFloat32(4 * i, values[i]!, true);
  return new Uint8Array(view.buffer);
}
