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

/** The first `count` of packed bits. */
export function unpackBits(bytes: Uint8Array, count: number): boolean[] {
  return Array.from({ length: count }, (_, i) => ((bytes[i >> 3]! >> (i & 7)) & 1) === 1);
}

/** What `packIntegers` packed. */
export function unpackIntegers(bytes: Uint8Array, low: number, high: number): Float64Array {
  const width = integerWidth(low, high);
  return Float64Array.from({ length: bytes.length / width }, (_, i) => {
    let value = 0;
    for (let k = width - 1; k >= 0; k -= 1) value = 256 * value + bytes[i * width + k]!;
    return value + low;
  });
}

/** What `packReals` packed. */
export function unpackReals(bytes: Uint8Array): Float32Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Float32Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

/** float32, little-endian. */
export function packReals(values: ArrayLike<number>): Uint8Array<ArrayBuffer> {
  const view = new DataView(new ArrayBuffer(4 * values.length));
  for (let i = 0; i < values.length; i += 1) view.setFloat32(4 * i, values[i]!, true);
  return new Uint8Array(view.buffer);
}
