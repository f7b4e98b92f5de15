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

/** A grid of whole numbers, row by row. */
interface Grid {
  height: number;
  width: number;
  values: Float64Array;
}

/**
 * A window of values or taps w(row, column) as sums over its four quarters, in the order of rows and columns from the middle
 * on: of places that a wave's real part sees alike (`even`) or with another sign (`odd`) at opposite places, each split into
 * what stays (`same`) and what changes its sign (`turned`) when the columns are reversed.
 */
interface Quarters {
  evenSame: Float64Array;
  evenTurned: Float64Array;
  oddSame: Float64Array;
  oddTurned: Float64Array;
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
  readonly #bells = new Map<string, Bell>();

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
    for (let channel = 0; channel < this.#channels; channel += 1) {
      const at = first + channel * pixels;
      const values = Float64Array.from(x.subarray(at, at + pixels), wholePixel);
      const cells = this.#maps({ height: this.#height, width: this.#width, values });
      const size = this.shape[1] * this.shape[2];
      cells.forEach((map, i) => found.set(map, (channel * cells.length + i) * size));
    }
    return found;
  }

  /** The maps of one channel, in the order 0, 1, 2. */
  #maps(x: Grid): Float64Array[] {
    const found = [this.#average(x, 0)];
    const second: Float64Array[] = [];
    for (let a = 0; a < this.#scales; a += 1) {
      const first = this.#moduli(x, a);
      found.push(...first.map((map) => this.#average(map, a)));
      for (let b = a + 1; b < (this.#orders === 2 ? this.#scales : 0); b += 1) {
        for (const map of first) second.push(...this.#moduli(map, b - a).map((both) => this.#average(both, b)));
      }
    }
    return [...found, ...second];
  }

  /** |psi * x| of every angle at every 2^scale-th place. */
  #moduli(x: Grid, scale: number): Grid[] {
    let waves = this.#waves.get(scale);
    if (!waves) this.#waves.set(scale, (waves = new Waves(scale, this.#angles)));
    return waves.moduli(x);
  }

  /** phi * x at every cell of what is known at every 2^known-th pixel. */
  #average(x: Grid, known: number): Float64Array {
    const of = (size: number) => {
      const key = `${size} ${known}`;
      const bell = this.#bells.get(key) ?? bellOf(size, this.#scales - 1 - known, 2 ** (this.#scales - known));
      this.#bells.set(key, bell);
      return bell;
    };
    return averaged(x, of(x.height), of(x.width));
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

/** The waves of one scale, at every angle. */
class Waves {
  readonly #reach: number;
  readonly #stride: number;
  /** those of angles 0 to a right angle: each of the others is one of these with its rows reversed, conjugated */
  readonly #waves: Quarters[];
  readonly #angles: number;
  /** of the place at hand */
  readonly #window: Quarters;

  constructor(scale: number, angles: number) {
    this.#reach = reachOf(scale);
    this.#stride = 2 ** scale;
    this.#angles = angles;
    this.#waves = Array.from({ length: Math.floor(angles / 2) + 1 }, (_, angle) => waveOf(scale, angle, angles));
    this.#window = quarters(this.#reach);
  }

  /** |psi * x| of every angle at every stride-th place. */
  moduli({ height, width, values }: Grid): Grid[] {
    const [reach, stride, angles, window] = [this.#reach, this.#stride, this.#angles, this.#window];
    const across = width + 2 * reach;
    const beside = Int32Array.from({ length: across }, (_, column) => mirrored(column - reach, width));
    const padded = new Float64Array((height + 2 * reach) * across);
    for (let row = 0, at = 0; row < height + 2 * reach; row += 1) {
      const from = mirrored(row - reach, height) * width;
      for (let column = 0; column < across; column += 1, at += 1) padded[at] = values[from + beside[column]!]!;
    }
    const [down, wide] = [Math.ceil(height / stride), Math.ceil(width / stride)];
    const found = Array.from({ length: angles }, () => new Float64Array(down * wide));
    for (let row = 0; row < down; row += 1) {
      for (let column = 0; column < wide; column += 1) {
        fold(padded, (row * stride + reach) * across + column * stride + reach, across, reach, window);
        const place = row * wide + column;
        this.#waves.forEach((wave, angle) => {
          const [re, turnedRe] = [product(wave.evenSame, window.evenSame), product(wave.evenTurned, window.evenTurned)];
          const [im, turnedIm] = [product(wave.oddSame, window.oddSame), product(wave.oddTurned, window.oddTurned)];
          found[angle]![place] = modulus(re + turnedRe, im + turnedIm);
          if (angle > 0 && 2 * angle < angles) found[angles - angle]![place] = modulus(re - turnedRe, im - turnedIm);
        });
      }
    }
    return found.map((map) => ({ height: down, width: wide, values: map }));
  }
}

/** Room for the quarters of a window that reaches so far. */
function quarters(reach: number): Quarters {
  const [own, others] = [reach + 1, reach * reach];
  return {
    evenSame: new Float64Array(own + reach * own), evenTurned: new Float64Array(others),
    oddSame: new Float64Array(reach * own), oddTurned: new Float64Array(reach + others),
  };
}

/** The quarters of the window around `middle`. */
function fold(padded: Float64Array, middle: number, across: number, reach: number, found: Quarters): void {
  const { evenSame, evenTurned, oddSame, oddTurned } = found;
  evenSame[0] = padded[middle]!;
  for (let column = 1; column <= reach; column += 1) {
    const [after, before] = [padded[middle + column]!, padded[middle - column]!];
    evenSame[column] = after + before;
    oddTurned[column - 1] = after - before;
  }
  let [same, turned] = [0, 0];
  for (let row = 1; row <= reach; row += 1) {
    const [below, above] = [middle + row * across, middle - row * across];
    evenSame[reach + 1 + same] = padded[below]! + padded[above]!;
    oddSame[same] = padded[below]! - padded[above]!;
    same += 1;
    for (let column = 1; column <= reach; column += 1, same += 1, turned += 1) {
      const [even, odd] = [padded[below + column]! + padded[above - column]!, padded[below + column]! - padded[above - column]!];
      const [evenBack, oddBack] = [padded[below - column]! + padded[above + column]!, padded[below - column]! - padded[above + column]!];
      evenSame[reach + 1 + same] = even + evenBack;
      evenTurned[turned] = even - evenBack;
      oddSame[same] = odd + oddBack;
      oddTurned[reach + turned] = odd - oddBack;
    }
  }
}

function product(taps: Float64Array, values: Float64Array): number {
  let sum = 0;
  for (let k = 0; k < taps.length; k += 1) sum += taps[k]! * values[k]!;
  return sum;
}

function modulus(real: number, imaginary: number): number {
  const [re, im] = [real / WAVE_STEPS, imaginary / WAVE_STEPS];
  return rint(Math.sqrt(re * re + im * im));
}

/** One Morlet wavelet of an angle up to a right one, as whole numbers (or halves) of 2^-26. */
function waveOf(scale: number, angle: number, angles: number): Quarters {
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
  return halved(reach, real.map((value, k) => rounded(value - bell[k]! * level)), imaginary.map(rounded));
}

/** The quarters of a wave: its real part is even, its imaginary part odd, and each pair of places is seen twice. */
function halved(reach: number, real: Float64Array, imaginary: Float64Array): Quarters {
  const found = quarters(reach);
  const at = (row: number, column: number) => (row + reach) * (2 * reach + 1) + column + reach;
  for (let column = 0; column <= reach; column += 1) {
    found.evenSame[column] = real[at(0, column)]!;
    if (column > 0) found.oddTurned[column - 1] = imaginary[at(0, column)]!;
  }
  let [same, turned] = [0, 0];
  for (let row = 1; row <= reach; row += 1) {
    for (let column = 0; column <= reach; column += 1, same += 1) {
      const [forth, back] = [at(row, column), at(row, -column)];
      found.evenSame[reach + 1 + same] = (real[forth]! + real[back]!) / 2;
      found.oddSame[same] = (imaginary[forth]! + imaginary[back]!) / 2;
      if (column === 0) continue;
      found.evenTurned[turned] = (real[forth]! - real[back]!) / 2;
      found.oddTurned[reach + turned] = (imaginary[forth]! - imaginary[back]!) / 2;
      turned += 1;
    }
  }
  return found;
}

/** For each cell the places that it averages over and the taps, as whole numbers of 2^-24. */
interface Bell {
  taps: Float64Array;
  /** `[cells, taps]` */
  places: Int32Array;
}

function bellOf(size: number, scale: number, stride: number): Bell {
  const [width, reach] = [widthOf(scale), reachOf(scale)];
  const heights = Array.from({ length: 2 * reach + 1 }, (_, k) => Math.exp(-((k - reach) * (k - reach)) / (2 * (width * width))));
  const total = heights.reduce((sum, height) => sum + height, 0);
  const count = heights.length;
  const places = Int32Array.from({ length: Math.ceil(size / stride) * count }, (_, i) =>
    mirrored(Math.floor(i / count) * stride + (i % count) - reach, size));
  return { taps: Float64Array.from(heights, (height) => rint((height / total) * BELL_STEPS)), places };
}

function averaged({ height, width, values }: Grid, down: Bell, across: Bell): Float64Array {
  const [rows, columns] = [down.places.length / down.taps.length, across.places.length / across.taps.length];
  const beside = new Float64Array(height * columns);
  for (let row = 0; row < height; row += 1) {
    for (let cell = 0; cell < columns; cell += 1) {
      beside[row * columns + cell] = rint((weighted(values, row * width, 1, across, cell) / BELL_STEPS) * BETWEEN);
    }
  }
  const found = new Float64Array(rows * columns);
  for (let cell = 0; cell < found.length; cell += 1) {
    found[cell] = rint(weighted(beside, cell % columns, columns, down, Math.floor(cell / columns)) / (BELL_STEPS * BETWEEN));
  }
  return found;
}

/** The sum of a cell's taps times the values at its places, which lie `step` apart from `first` on. */
function weighted(values: Float64Array, first: number, step: number, { taps, places }: Bell, cell: number): number {
  let sum = 0;
  for (let k = 0; k < taps.length; k += 1) sum += taps[k]! * values[first + step * places[cell * taps.length + k]!]!;
  return sum;
}
