/**
 * The innermost loops of products of matrices in float64, eight sums at a time: as WebAssembly, two values at a time, or in
 * plain script where a browser has none. Addresses are bytes in one memory.
 */
export interface Tiles {
  /** found[8] = products of the rows at a, b, c and d, each with the row at e, then each with the row at f. */
  multiply(a: number, b: number, c: number, d: number, e: number, f: number, width: number, found: number): void;
  /** Adds the rows at a, b, c and d to the row at e, times the first four of parts[8], and to that at f, times the others. */
  add(a: number, b: number, c: number, d: number, e: number, f: number, width: number, parts: number): void;
}

/** Room for so many numbers, and the loops over them. */
export function tilesFor(length: number, kernel = assembled()): { buffer: ArrayBuffer; tiles: Tiles } {
  if (kernel === null) {
    const values = new Float64Array(length);
    return { buffer: values.buffer, tiles: new ScriptTiles(values) };
  }
  const memory = new WebAssembly.Memory({ initial: Math.ceil((8 * length) / 2 ** 16) });
  const { exports } = new WebAssembly.Instance(kernel, { "": { memory } });
  return { buffer: memory.buffer as ArrayBuffer, tiles: exports as unknown as Tiles };
}

class ScriptTiles implements Tiles {
  constructor(readonly values: Float64Array) {}

  multiply(a: number, b: number, c: number, d: number, e: number, f: number, width: number, found: number): void {
    const { values } = this;
    let [ae, be, ce, de, af, bf, cf, df] = [0, 0, 0, 0, 0, 0, 0, 0];
    const [a8, b8, c8, d8, e8, f8] = [a / 8, b / 8, c / 8, d / 8, e / 8, f / 8];
    for (let j = 0; j < width; j += 1) {
      const own = values[e8 + j]!; // one line each: a pattern would take most of the time here
      const other = values[f8 + j]!;
      const x = values[a8 + j]!;
      const y = values[b8 + j]!;
      const z = values[c8 + j]!;
      const w = values[d8 + j]!;
      ae += x * own;
      be += y * own;
      ce += z * own;
      de += w * own;
      af += x * other;
      bf += y * other;
      cf += z * other;
      df += w * other;
    }
    values.set([ae, be, ce, de, af, bf, cf, df], found / 8);
  }

  add(a: number, b: number, c: number, d: number, e: number, f: number, width: number, parts: number): void {
    const { values } = this;
    const [a8, b8, c8, d8, e8, f8] = [a / 8, b / 8, c / 8, d / 8, e / 8, f / 8];
    const [ae, be, ce, de, af, bf, cf, df] = values.subarray(parts / 8, parts / 8 + 8) as unknown as number[];
    for (let j = 0; j < width; j += 1) {
      const x = values[a8 + j]!;
      const y = values[b8 + j]!;
      const z = values[c8 + j]!;
      const w = values[d8 + j]!;
      values[e8 + j]! += ae! * x + be! * y + (ce! * z + de! * w);
      values[f8 + j]! += af! * x + bf! * y + (cf! * z + df! * w);
    }
  }
}

// --- the same in WebAssembly (its core specification, version 2.0, has the numbers of instructions)

type Code = number[];

const EMPTY = 0x40;
const [I32, V128] = [0x7f, 0x7b];
const END = [0x0b];

function unsigned(value: number): Code {
  return value < 128 ? [value] : [(value % 128) + 128, ...unsigned(Math.floor(value / 128))];
}

const sized = (code: Code): Code => [...unsigned(code.length), ...code];
const many = (items: Code[]): Code => [...unsigned(items.length), ...items.flat()];
const name = (text: string): Code => sized([...new TextEncoder().encode(text)]);

const get = (local: number): Code => [0x20, local];
const set = (local: number): Code => [0x21, local];
const whole = (value: number): Code => [0x41, value]; // below 64
const add = (a: Code, b: Code): Code => [...a, ...b, 0x6a];
const shifted = (a: Code, by: number): Code => [...a, ...whole(by), 0x74];
const vector = (instruction: number, ...rest: number[]): Code => [0xfd, ...unsigned(instruction), ...rest];
/** alignment of 8 bytes, and an offset */
const at = (offset: number): Code => [3, ...unsigned(offset)];
const [PAIR, ONE, SPLAT] = [0, 93, 10] as const; // loads two values, one and a zero, or the same one twice
const load = (kind: typeof PAIR | typeof ONE | typeof SPLAT, address: number, offset = 0): Code => [...get(address), ...vector(kind, ...at(offset))];
const times = (a: Code, b: Code): Code => [...a, ...b, ...vector(242)];
const plus = (a: Code, b: Code): Code => [...a, ...b, ...vector(240)];
const lane = (local: number, number: number): Code => [...get(local), ...vector(33, number)];

/** locals: the addresses of six rows, the width, and where the eight numbers are; then where pairs end, and vectors */
const [A, E, F, WIDTH, EIGHT, LAST, FIRST] = [0, 4, 5, 6, 7, 8, 9];
const ROWS = [0, 1, 2, 3];

/** `body` for all pairs of values, and for the one that may be left. */
function along(body: (kind: typeof PAIR | typeof ONE) => Code): Code {
  const forward = [0, 1, 2, 3, 4, 5].flatMap((row) => [...add(get(row), whole(16)), ...set(row)]);
  const last = [...add(get(A), shifted([...get(WIDTH), ...whole(1), 0x76], 4)), ...set(LAST)];
  const before = [...get(A), ...get(LAST), 0x49]; // a < last
  const loop = [0x03, EMPTY, ...body(PAIR), ...forward, ...before, 0x0d, 0, ...END];
  const pairs = [...before, 0x04, EMPTY, ...loop, ...END];
  const odd = [...get(WIDTH), ...whole(1), 0x71, 0x04, EMPTY, ...body(ONE), ...END];
  return [...last, ...pairs, ...odd];
}

function multiplyCode(): Code {
  const [sums, own, other, value] = [FIRST, FIRST + 8, FIRST + 9, FIRST + 10];
  const body = (kind: typeof PAIR | typeof ONE): Code => [
    ...load(kind, E), ...set(own), ...load(kind, F), ...set(other),
    ...ROWS.flatMap((row) => [
      ...load(kind, row), ...set(value),
      ...plus(get(sums + row), times(get(value), get(own))), ...set(sums + row),
      ...plus(get(sums + 4 + row), times(get(value), get(other))), ...set(sums + 4 + row),
    ]),
  ];
  const store = (k: number): Code => [...get(EIGHT), ...lane(sums + k, 0), ...lane(sums + k, 1), 0xa0, 0x39, ...at(8 * k)];
  return [...along(body), ...[0, 1, 2, 3, 4, 5, 6, 7].flatMap(store)];
}

function addCode(): Code {
  const [parts, values] = [FIRST, FIRST + 8];
  const splats = [0, 1, 2, 3, 4, 5, 6, 7].flatMap((k) => [...load(SPLAT, EIGHT, 8 * k), ...set(parts + k)]);
  const body = (kind: typeof PAIR | typeof ONE): Code => [
    ...ROWS.flatMap((row) => [...load(kind, row), ...set(values + row)]),
    ...[E, F].flatMap((row, k) => {
      const term = (i: number): Code => times(get(values + i), get(parts + 4 * k + i));
      const sum = plus(plus(load(kind, row), plus(term(0), term(1))), plus(term(2), term(3)));
      return [...get(row), ...sum, ...(kind === PAIR ? vector(11, ...at(0)) : vector(91, ...at(0), 0))];
    }),
  ];
  return [...splats, ...along(body)];
}

function moduleOf(functions: Record<keyof Tiles, Code>): Uint8Array<ArrayBuffer> {
  const type = [0x60, ...many(Array<Code>(8).fill([I32])), 0];
  const memory = [...name(""), ...name("memory"), 2, 0, 0];
  const names = Object.keys(functions);
  const locals = [...unsigned(2), 1, I32, 12, V128];
  const codes = Object.values(functions).map((code) => sized([...locals, ...code, ...END]));
  const section = (number: number, items: Code[]): Code => [number, ...sized(many(items))];
  return Uint8Array.from([
    ...new TextEncoder().encode("\0asm"), 1, 0, 0, 0,
    ...section(1, [type]), ...section(2, [memory]), ...section(3, names.map(() => [0])),
    ...section(7, names.map((own, i) => [...name(own), 0, i])), ...section(10, codes),
  ]);
}

let kernel: WebAssembly.Module | null | undefined;

/** The module, made once; null where a browser has no WebAssembly of this kind, or a policy forbids it. */
function assembled(): WebAssembly.Module | null {
  if (kernel !== undefined) return kernel;
  try {
    kernel = new WebAssembly.Module(moduleOf({ multiply: multiplyCode(), add: addCode() }));
  } catch {
    kernel = null;
  }
  return kernel;
}
