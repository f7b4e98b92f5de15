/**
 * Sums over all records on public features (docs/bits.md, "Sums on public features"): second moments of their normal form in
 * the first round, clipped gradients of a linear head on whitened records in all others. They are exact modulo 2^52, for any number
 * of records; the privacy room adds the noise. What a record adds is a function of that record and the plan alone.
 */
import { Refused } from "../wire/refusal.ts";
import type { Limits, SumsTraining, Task, Whitening } from "../wire/task.ts";
import { GradientSum, addFlat, wholeWeights } from "./linear_head.ts";
import { NormalForm } from "./normal_form.ts";
import { Records } from "./records.ts";
import { Scattering } from "./scattering.ts";
import { SecondMoments } from "./second_moments.ts";
import type { Doing, Progress, Trained } from "./training.ts";
import { WhitenedRecords, Whitener } from "./whitened.ts";

/** What one round sums up. */
export interface Summing {
  limits: Limits;
  /** null in the round of second moments */
  whitening: Whitening | null;
}

export interface Summed extends Trained {
  sums: Float64Array;
}

/** Records that are worked on together, and have arrays together. */
interface Block {
  number: number;
  first: number;
  count: number;
}

/** Records, and normal forms in whole numbers below 2^15 of blocks that are kept; others may be taken while these are summed. */
interface Units {
  records: Records;
  form: NormalForm;
  kept: (Int16Array | undefined)[];
}

/** Whitened records of blocks that are kept. */
interface White {
  whitener: Whitener;
  limit: number;
  spare: WhitenedRecords;
  kept: (WhitenedRecords | undefined)[];
}

/** the length of a record that is shown to the model: as long as a server shows its own */
const SHOWN = 1448;
/** How many records a block has, and how many bytes of blocks are kept from round to round: all others are made again. */
const ROOM = { block: 32, kept: 2 ** 30 };

export class FeatureSums {
  readonly #training: SumsTraining;
  readonly #classes: number;
  readonly #scattering: Scattering;
  readonly #pixels: number;
  /** maps times cells */
  readonly #size: number;
  #records: Records;
  readonly #block: number;
  /** blocks that are kept: no array is as long as the records, and no number of them is too large */
  readonly #most: number;
  /** for a block that is not kept */
  readonly #spare: Int16Array;
  #units: Units | null = null;
  #white: White | null = null;
  #sum: GradientSum | null = null;
  readonly #turn = new Turn();

  constructor(task: Task, training: SumsTraining, { block, kept } = ROOM) {
    const [channels, height, width] = task.input.shape as [number, number, number];
    this.#training = training;
    this.#classes = task.classes.length;
    this.#scattering = new Scattering([channels, height, width], training.extractor);
    const [maps, down, across] = this.#scattering.shape;
    if (maps !== training.maps || down * across !== training.cells) {
      throw new Refused(`this page cannot take part: scattering has ${maps} x ${down * across} features here, not ${training.maps} x ${training.cells}`);
    }
    this.#pixels = channels * height * width;
    this.#records = new Records(this.#pixels);
    this.#size = training.maps * training.cells;
    new NormalForm(training, 1); // refuses groups and roots that do not fit
    this.#block = block;
    this.#most = Math.floor(kept / (block * (4 * this.#size + 10) + 16 * (this.#size + 1)));
    this.#spare = new Int16Array(block * this.#size);
  }

  /** The records, normalised, channel after channel, in place of all from before. */
  take(x: Float32Array, y: Int32Array): void {
    this.#records = new Records(this.#pixels);
    this.add(x, y);
  }

  /** Another block of records: as many as the first has, but the last may have fewer. */
  add(x: Float32Array, y: Int32Array): void {
    this.#records.add(x, y);
    [this.#units, this.#white] = [null, null];
  }

  async sum(parameters: Float32Array, { limits, whitening }: Summing, progress: Progress): Promise<Summed> {
    if (this.#units?.form.limit !== limits.unit) {
      [this.#units, this.#white] = [{ records: this.#records, form: new NormalForm(this.#training, limits.unit), kept: [] }, null];
    }
    const units = this.#units;
    for (const block of this.#blocks(units, this.#most)) await this.#wholeUnits(units, block, progress);
    if (whitening === null) return this.#secondMoments(units, progress);
    const white = this.#whitenedBy(whitening, limits.row);
    for (const block of this.#blocks(units, this.#most)) await this.#whitened(white, units, block, progress);
    return this.#gradients(parameters, white, units, limits.residual, progress);
  }

  /** Scores of the classes for one normalised record, by parameters, centre and matrix one after another. */
  scores(model: Float32Array, record: Float32Array): Float64Array {
    const { maps, cells, bias } = this.#training;
    const size = this.#classes * (this.#size + 1);
    const [centre, left] = [model.subarray(size, size + maps), model.subarray(size + maps, size + maps + maps * maps)];
    const z = new Float64Array(this.#size);
    const whitener = new Whitener({ left, centre }, cells, 1);
    whitener.take(new NormalForm(this.#training, SHOWN).whole(this.#scattering.features(record)), 0, 1);
    whitener.copy(0, 1, z);
    const length = Math.max(Math.sqrt(z.reduce((sum, value) => sum + value * value, 0)), 1e-12);
    return Float64Array.from({ length: this.#classes }, (_, k) => {
      let score = 0;
      for (let j = 0; j < z.length; j += 1) score += model[k * z.length + j]! * z[j]!;
      return score / length + bias * model[this.#classes * z.length + k]!;
    });
  }

  *#blocks({ records: { count } }: Units, most = Infinity): Iterable<Block> {
    for (let number = 0; number < most && number * this.#block < count; number += 1) {
      const first = number * this.#block;
      yield { number, first, count: Math.min(this.#block, count - first) };
    }
  }

  /** What a block that is kept is made in; the spare where it is not, or where there is no memory. */
  #roomFor<T>({ number }: Block, spare: T, make: () => T): T {
    try {
      return number < this.#most ? make() : spare;
    } catch {
      return spare;
    }
  }

  /** The normal forms of a block; who stops goes on with the block that was not finished. */
  async #wholeUnits(units: Units, block: Block, progress: Progress): Promise<Int16Array> {
    const { kept } = units;
    const made = kept[block.number];
    if (made) return made;
    const whole = this.#roomFor(block, this.#spare, () => new Int16Array(block.count * this.#size));
    for (let i = 0; i < block.count; i += 1) {
      whole.set(this.#wholeOf(units, block.first + i), i * this.#size);
      await this.#past(units, block.first + i + 1, progress, "features");
    }
    if (whole !== this.#spare) kept[block.number] = whole;
    return whole;
  }

  /** The normal form of one record; 0 where it fails: an error would end the sums of all others, and show the record. */
  #wholeOf({ records, form }: Units, record: number): Float64Array {
    const { x, first } = records.at(record);
    try {
      return form.whole(this.#scattering.features(x, first));
    } catch {
      return new Float64Array(this.#size);
    }
  }

  async #secondMoments(units: Units, progress: Progress): Promise<Summed> {
    const moments = new SecondMoments(this.#training.maps, this.#training.cells, units.form.limit);
    for (const block of this.#blocks(units)) {
      const whole = await this.#wholeUnits(units, block, progress);
      moments.add(whole, 0, block.count);
      await this.#past(units, block.first + block.count, progress, "training");
    }
    return { sums: moments.sums, parameters: null, clear: null, loss: null, seen: units.records.count, order: null };
  }

  #whitenedBy(by: Whitening, limit: number): White {
    if (this.#white?.limit !== limit || !same(this.#white.whitener.by, by)) {
      this.#white = null; // the next takes its memory
      const whitener = new Whitener(by, this.#training.cells);
      this.#white = { whitener, limit, spare: new WhitenedRecords(this.#block, whitener, this.#training.bias, limit), kept: [] };
    }
    return this.#white;
  }

  /** The whitened records of a block, made once for what a plan whitens by. */
  async #whitened({ whitener, limit, spare, kept }: White, units: Units, block: Block, progress: Progress): Promise<WhitenedRecords> {
    const made = kept[block.number];
    if (made) return made;
    const whole = await this.#wholeUnits(units, block, progress);
    const records = this.#roomFor(block, spare, () => new WhitenedRecords(block.count, whitener, this.#training.bias, limit));
    records.set(0, whole, 0, block.count);
    await this.#past(units, block.first + block.count, progress, "features");
    if (records !== spare) kept[block.number] = records;
    return records;
  }

  async #gradients(parameters: Float32Array, white: White, units: Units, limit: number, progress: Progress): Promise<Summed> {
    const { width } = white.spare;
    const weights = wholeWeights(parameters, this.#size, this.#classes);
    if (this.#sum?.limit !== limit) this.#sum = new GradientSum(this.#classes, width, this.#training.clip, limit);
    const gradients = this.#sum;
    gradients.begin(weights);
    for (const block of this.#blocks(units)) {
      const { whole, scales, length } = await this.#whitened(white, units, block, progress);
      for (let i = 0; i < block.count; i += 1) gradients.add(whole.subarray(i * width, (i + 1) * width), scales[i]!, length, units.records.at(block.first + i).label);
      await this.#past(units, block.first + block.count, progress, "training");
    }
    const { total, losses } = gradients.now;
    const sums = new Float64Array(weights.length);
    addFlat(sums, total, this.#size, this.#classes);
    const { count } = units.records;
    return { sums, parameters: null, clear: null, loss: count ? losses / count : null, seen: count, order: null };
  }

  /** After some of the records, `done` so far. */
  async #past({ records }: Units, done: number, progress: Progress, doing: Doing): Promise<void> {
    if (this.#turn.isOver) await this.#turn.pass();
    progress(done, records.count, doing);
  }
}

function same(a: Whitening, b: Whitening): boolean {
  return a.left.every((value, i) => value === b.left[i]) && a.centre.every((value, i) => value === b.centre[i]);
}

/** milliseconds that a worker computes before it listens */
const TURN = 20;

/** A turn of computing; passing it lets a worker hear what it was told meanwhile. */
class Turn {
  #begun = performance.now();

  get isOver(): boolean {
    return performance.now() - this.#begun >= TURN;
  }

  async pass(): Promise<void> {
    const { port1, port2 } = new MessageChannel(); // a timer would wait 4 ms longer
    await new Promise((resolve) => {
      port1.onmessage = resolve;
      port2.postMessage(null);
    });
    port1.close();
    this.#begun = performance.now();
  }
}
