/**
 * Scattering: public features of an image in whole numbers, the same as Python's (docs/bits.md; sordino.learning.scattering).
 *
 *     order 0    phi * x
 *     order 1    phi * |psi_a * x|
 *     order 2    phi * |psi_b * |psi_a * x||,  b coarser than a
 *
 * psi are Morlet wavelets of `scales` widths and `angles` directions, phi is a bell that averages over 2^scales pixels (Bruna
 * and Mallat, "Invariant scattering convolution networks", PAMI 2013). Nothing is learnt. Pixels and filters are whole numbers
 * and sums of their products stay below 2^53, so that they are exact in any order; the modulus is one correctly rounded
 * operation at a time.
 */
import { Refused } from "../wire/refusal.ts";
import { Workbench } from "./products.ts";
import { rint } from "./whole.ts";

/** steps of a pixel, and of a feature */
const VALUE_STEPS = 2 ** 20;
/** pixels beyond it count as it */
const LARGEST = 4;
/** steps of a wave's taps: sums stay below 2^22 * 2^26 * 2 */
const WAVE_STEPS = 2 ** 26;
/** steps of a bell's taps along one axis, which add up to 1: sums stay below 2^27 * 2^24 */
const BELL_STEPS = 2 ** 24;
/** more steps of a value that is averaged along one axis and not yet along the other */
const BETWEEN = 2 ** 3;

export interface ScatteringOptions {
  scales: number;
  angles: number;
  orders: number;
}

/** Grids of whole numbers, one after another, row by row. */
interface Grids {
  count: number;
  height: number;
  width: number;
  values: Float64Array;
}

/** Features of images `[channels, height, width]`: maps of cells, each cell 2^scales pixels wide. */
export class Scattering {
  /** of the features of one image: maps, cells down, cells across */
  readonly shape: readonly [maps: number, down: number, across: number];
  readonly #channels: number;
  readonly #height: number;
  readonly #width: number;
  readonly #scales: number;
  readonly #angles: number;
  readonly #orders: number;
  readonly #waves = new Map<number, Waves>();
  readonly #averages = new Map<string, Average>();

  constructor([channels, height, width]: readonly [number, number, number], { scales, angles, orders }: ScatteringOptions) {
    const allowed = [channels, height, width, scales, angles, orders].every(Number.isInteger) && channels >= 1 && scales >= 1 &&
      scales <= 6 && angles >= 1 && angles <= 32 && (orders === 1 || orders === 2);
    if (!allowed) {
      throw new Refused(`this page cannot take part: scattering takes 1 to 6 scales, 1 to 32 angles and 1 or 2 orders, got ${scales}, ${angles} and ${orders}`);
    }
    if (Math.min(height, width) < 2 ** scales) {
      throw new Refused(`this page cannot take part: an image of ${height}x${width} has no cell of ${2 ** scales} pixels`);
    }
    [this.#channels, this.#height, this.#width] = [channels, height, width];
    [this.#scales, this.#angles, this.#orders] = [scales, angles, orders];
    const pairs = orders === 2 ? (scales * (scales - 1)) / 2 : 0;
    const maps = 1 + scales * angles + pairs * angles ** 2;
    this.shape = [channels * maps, Math.ceil(height / 2 ** scales), Math.ceil(width / 2 ** scales)];
  }

  /** How many features an image has. */
  get size(): number {
    return this.shape[0] * this.shape[1] * this.shape[2];
  }

  /** The features of the image at `first` in x, as whole numbers of 2^-20, map after map; all maps of a channel stand together. */
  features(x: Float32Array, first = 0): Float32Array {
    const found = new Float32Array(this.size);
    const pixels = this.#height * this.#width;
    let at = 0;
    for (let channel = 0; channel < this.#channels; channel += 1) {
      const values = new Float64Array(pixels);
      for (let i = 0; i < pixels; i += 1) values[i] = wholePixel(x[first + channel * pixels + i]!);
      for (const maps of this.#maps({ count: 1, height: this.#height, width: this.#width, values })) {
        found.set(maps, at);
        at += maps.length;
      }
    }
    return found;
  }

  /** The maps of one channel, in the order 0, 1, 2. */
  #maps(x: Grids): Float64Array[] {
    const found = [this.#average(x, 0)];
    const second: Float64Array[] = [];
    for (let a = 0; a < this.#scales; a += 1) {
      const first = this.#wavesOf(a).moduli(x, 0);
      found.push(this.#average(first, a));
      for (let b = a + 1; b < (this.#orders === 2 ? this.#scales : 0); b += 1) {
        for (let map = 0; map < first.count; map += 1) second.push(this.#average(this.#wavesOf(b - a).moduli(first, map), b));
      }
    }
    return [...found, ...second];
  }

  #wavesOf(scale: number): Waves {
    let waves = this.#waves.get(scale);
    if (!waves) this.#waves.set(scale, (waves = new Waves(scale, this.#angles)));
    return waves;
  }

  /** phi * x at every cell of what is known at every 2^known-th pixel. */
  #average(x: Grids, known: number): Float64Array {
    const key = `${x.height} ${x.width} ${known} ${x.count}`;
    let average = this.#averages.get(key);
    if (!average) this.#averages.set(key, (average = new Average(x, this.#scales - 1 - known, 2 ** (this.#scales - known))));
    return average.of(x.values);
  }
}

function wholePixel(pixel: number): number {
  return Number.isNaN(pixel) ? 0 : rint(Math.max(-LARGEST, Math.min(LARGEST, pixel)) * VALUE_STEPS);
}

/** The standard deviation of a wave's bell across its stripes, in pixels. */
const widthOf = (scale: number): number => 0.8 * 2 ** scale;

/** How many pixels a wave of this scale reaches to each side: three deviations along its stripes. */
const reachOf = (scale: number): number => Math.ceil(6 * widthOf(scale));

/** The pixel that stands at a place beyond the border: an image goes on as in a mirror. */
function mirrored(place: number, size: number): number {
  const period = Math.max(1, 2 * size - 2);
  const within = ((place % period) + period) % period;
  return Math.min(within, period - within);
}

/**
 * The waves of one scale, at every angle: products with the sums of rows at the same distance above and below a place (even)
 * and with their differences (odd). So a wave and its mirror image share them, and neighbouring places lie in them one after
 * another, column by column.
 */
class Waves {
  readonly #reach: number;
  readonly #stride: number;
  readonly #angles: number;
  /** waves of angles 0 to a right angle: each other one is one of these with its rows reversed, conjugated */
  readonly #count: number;
  /** `[waves, real and imaginary, columns, rows]` */
  readonly #even: Float64Array;
  readonly #odd: Float64Array;
  readonly #mirrors = new Map<number, Int32Array>();
  readonly #rooms = new Map<number, Room>();

  constructor(scale: number, angles: number) {
    this.#reach = reachOf(scale);
    this.#stride = 2 ** scale;
    this.#angles = angles;
    this.#count = Math.floor(angles / 2) + 1;
    const waves = Array.from({ length: this.#count }, (_, angle) => waveOf(scale, angle, angles)).flat();
    this.#even = Float64Array.from(waves.flatMap((wave) => [...halved(wave, this.#reach, 1)]));
    this.#odd = Float64Array.from(waves.flatMap((wave) => [...halved(wave, this.#reach, -1)]));
  }

  /** |psi * x| of every angle at every stride-th place of one of some grids. */
  moduli(x: Grids, which: number): Grids {
    const [stride, size] = [this.#stride, 2 * this.#count];
    const [down, wide] = [Math.ceil(x.height / stride), Math.ceil(x.width / stride)];
    const { bench, evenRows, oddRows, evenWaves, oddWaves, evens, odds } = this.#room(x.width, wide);
    const [evenWidth, oddWidth] = [evenWaves.length / size, oddWaves.length / size];
    const found = { count: this.#angles, height: down, width: wide, values: new Float64Array(this.#angles * down * wide) };
    for (let row = 0; row < down; row += 1) {
      this.#fold(x, which, row * stride, evenRows, oddRows);
      bench.multiply(evenRows, wide, evenWaves, size, evenWidth, evens, stride * (this.#reach + 1));
      bench.multiply(oddRows, wide, oddWaves, size, oddWidth, odds, stride * this.#reach);
      this.#setModuli(found, row, evens, odds);
    }
    return found;
  }

  /** Sums and differences of the rows above and below a row, `[columns, rows]`, with what a mirror shows beyond the borders. */
  #fold({ height, width, values }: Grids, which: number, middle: number, even: Float64Array, odd: Float64Array): void {
    const reach = this.#reach;
    const [rows, columns] = [this.#mirror(height), this.#mirror(width)];
    for (let column = 0, e = 0, o = 0; column < columns.length; column += 1) {
      const at = which * height * width + columns[column]!;
      even[e] = values[at + middle * width]!;
      e += 1;
      for (let row = 1; row <= reach; row += 1, e += 1, o += 1) {
        const below = values[at + rows[middle + reach + row]! * width]!;
        const above = values[at + rows[middle + reach - row]! * width]!;
        even[e] = below + above;
        odd[o] = below - above;
      }
    }
  }

  #setModuli({ height, width, values }: Grids, row: number, evens: Float64Array, odds: Float64Array): void {
    const [cells, angles] = [height * width, this.#angles];
    for (let angle = 0; angle < this.#count; angle += 1) {
      const mirrored = angle > 0 && 2 * angle < angles;
      const own = angle * cells + row * width;
      const other = (angles - angle) * cells + row * width;
      for (let column = 0; column < width; column += 1) {
        const at = 2 * (column * this.#count + angle);
        const re = evens[at]!;
        const im = evens[at + 1]!;
        const turnedRe = odds[at]!;
        const turnedIm = odds[at + 1]!;
        values[own + column] = modulus(re + turnedRe, im + turnedIm);
        if (mirrored) values[other + column] = modulus(re - turnedRe, im - turnedIm);
      }
    }
  }

  /** Where the pixels of a line lie that goes on as in a mirror, from `reach` before it on. */
  #mirror(size: number): Int32Array {
    let found = this.#mirrors.get(size);
    if (!found) this.#mirrors.set(size, (found = Int32Array.from({ length: size + 2 * this.#reach }, (_, i) => mirrored(i - this.#reach, size))));
    return found;
  }

  #room(width: number, wide: number): Room {
    let found = this.#rooms.get(width);
    if (!found) this.#rooms.set(width, (found = roomFor(width + 2 * this.#reach, this.#reach, this.#even, this.#odd, 2 * this.#count * wide)));
    return found;
  }
}

/** What is computed in for grids of one width. */
interface Room {
  bench: Workbench;
  evenRows: Float64Array;
  oddRows: Float64Array;
  evenWaves: Float64Array;
  oddWaves: Float64Array;
  evens: Float64Array;
  odds: Float64Array;
}

function roomFor(across: number, reach: number, even: Float64Array, odd: Float64Array, products: number): Room {
  const bench = new Workbench([across * (reach + 1), across * reach, even.length, odd.length]);
  const [evenRows, oddRows, evenWaves, oddWaves] = bench.arrays as [Float64Array, Float64Array, Float64Array, Float64Array];
  evenWaves.set(even);
  oddWaves.set(odd);
  return { bench, evenRows, oddRows, evenWaves, oddWaves, evens: new Float64Array(products), odds: new Float64Array(products) };
}

function modulus(real: number, imaginary: number): number {
  const re = real / WAVE_STEPS;
  const im = imaginary / WAVE_STEPS;
  return rint(Math.sqrt(re * re + im * im));
}

/** The real and the imaginary part of one Morlet wavelet of an angle up to a right one, as whole numbers of 2^-26. */
function waveOf(scale: number, angle: number, angles: number): [real: Float64Array, imaginary: Float64Array] {
  const [reach, width, frequency] = [reachOf(scale), widthOf(scale), (0.75 * Math.PI) / 2 ** scale];
  const [slant, turn] = [4 / angles, (Math.PI * angle) / angles];
  const [cosine, sine] = 2 * angle === angles ? [0, 1] : [Math.cos(turn), Math.sin(turn)];
  const size = 2 * reach + 1;
  const [real, imaginary, bell] = [new Float64Array(size * size), new Float64Array(size * size), new Float64Array(size * size)];
  for (let row = -reach, k = 0; row <= reach; row += 1) {
    for (let column = -reach; column <= reach; column += 1, k += 1) {
      const along = cosine * column + sine * row;
      const beside = cosine * row - sine * column;
      const height = (Math.exp(-(along * along + (slant * beside) * (slant * beside)) / (2 * (width * width))) * slant) / (2 * Math.PI * (width * width));
      bell[k] = height;
      real[k] = height * Math.cos(frequency * along);
      imaginary[k] = height * Math.sin(frequency * along);
    }
  }
  const total = (values: Float64Array) => values.reduce((sum, value) => sum + value, 0);
  const level = total(real) / total(bell); // no answer to an even surface
  const rounded = (value: number) => rint(value * WAVE_STEPS);
  return [real.map((value, k) => rounded(value - bell[k]! * level)), imaginary.map(rounded)];
}

/** What multiplies the sums (sign 1) or the differences (-1) of opposite rows: `[columns, rows from the middle on]`. */
function halved(wave: Float64Array, reach: number, sign: 1 | -1): Float64Array {
  const size = 2 * reach + 1;
  const at = (row: number, column: number) => wave[(row + reach) * size + column]!;
  const from = sign === 1 ? 0 : 1;
  const rows = reach + 1 - from;
  return Float64Array.from({ length: size * rows }, (_, i) => {
    const [column, row] = [Math.floor(i / rows), from + (i % rows)];
    return row === 0 ? at(0, column) : (at(row, column) + sign * at(-row, column)) / 2;
  });
}

/** Averages over cells of some grids, along one axis after the other. */
class Average {
  readonly #bench: Workbench;
  readonly #values: Float64Array;
  /** `[cells, pixels]` of either axis: bells, as whole numbers of 2^-24 */
  readonly #across: Float64Array;
  readonly #down: Float64Array;
  /** averaged along rows: `[grids * height, cells across]`, and as whole numbers `[grids, cells across, height]` */
  readonly #beside: Float64Array;
  readonly #between: Float64Array;
  /** `[grids, cells across, cells down]` */
  readonly #cells: Float64Array;

  constructor(readonly form: Omit<Grids, "values">, scale: number, stride: number) {
    const { count, height, width } = form;
    const [across, down] = [bellsOf(width, scale, stride), bellsOf(height, scale, stride)];
    const [wide, high] = [across.length / width, down.length / height];
    this.#bench = new Workbench([count * height * width, across.length, count * wide * height, down.length]);
    [this.#values, this.#across, this.#between, this.#down] = this.#bench.arrays as [Float64Array, Float64Array, Float64Array, Float64Array];
    this.#across.set(across);
    this.#down.set(down);
    [this.#beside, this.#cells] = [new Float64Array(count * height * wide), new Float64Array(count * wide * high)];
  }

  /** `[grids, cells down, cells across]` */
  of(values: Float64Array): Float64Array {
    const { count, height, width } = this.form;
    const [wide, high] = [this.#across.length / width, this.#down.length / height];
    const [beside, between, cells] = [this.#beside, this.#between, this.#cells];
    this.#values.set(values);
    this.#bench.multiply(this.#values, count * height, this.#across, wide, width, beside);
    for (let grid = 0, at = 0; grid < count; grid += 1) {
      for (let row = 0; row < height; row += 1) {
        for (let cell = 0; cell < wide; cell += 1, at += 1) {
          between[(grid * wide + cell) * height + row] = rint((beside[at]! / BELL_STEPS) * BETWEEN);
        }
      }
    }
    this.#bench.multiply(between, count * wide, this.#down, high, height, cells);
    const found = new Float64Array(cells.length);
    for (let grid = 0, at = 0; grid < count; grid += 1) {
      for (let cell = 0; cell < wide; cell += 1) {
        for (let row = 0; row < high; row += 1, at += 1) {
          found[(grid * high + row) * wide + cell] = rint(cells[at]! / (BELL_STEPS * BETWEEN));
        }
      }
    }
    return found;
  }
}

/** `[cells, size]`: for each cell what every pixel of a line counts, with what a mirror shows beyond the borders. */
function bellsOf(size: number, scale: number, stride: number): Float64Array {
  const [width, reach] = [widthOf(scale), reachOf(scale)];
  const heights = Array.from({ length: 2 * reach + 1 }, (_, k) => Math.exp(-((k - reach) * (k - reach)) / (2 * (width * width))));
  const total = heights.reduce((sum, height) => sum + height, 0);
  const found = new Float64Array(Math.ceil(size / stride) * size);
  for (let cell = 0; cell < found.length / size; cell += 1) {
    heights.forEach((height, k) => (found[cell * size + mirrored(cell * stride + k - reach, size)]! += rint((height / total) * BELL_STEPS)));
  }
  return found;
}
