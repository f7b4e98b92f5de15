/**
 * Sums over all records on public features (docs/bits.md, "Sums on public features"): second moments of their normal form in
 * the first round, clipped gradients of a linear head on whitened records in all others. They are exact; the privacy room
 * adds the noise. What a record adds is a function of that record and the plan alone.
 */
import { Refused } from "../wire/refusal.ts";
import type { Limits, SumsTraining, Task, Whitening } from "../wire/task.ts";
import { Residuals, addFlat, addOuter, wholeWeights } from "./linear_head.ts";
import { NormalForm } from "./normal_form.ts";
import { Scattering } from "./scattering.ts";
import { SecondMoments } from "./second_moments.ts";
import type { Progress, Trained } from "./training.ts";
import { WhitenedRecords, whitenedBy } from "./whitened.ts";

/** What one round sums up. */
export interface Summing {
  limits: Limits;
  /** null in the round of second moments */
  whitening: Whitening | null;
}

export interface Summed extends Trained {
  sums: Float64Array;
}

/** Normal forms of the first `done` records, in whole numbers below 2^15. */
interface Units {
  x: Float32Array;
  y: Int32Array;
  limit: number;
  whole: Int16Array;
  done: number;
}

/** the length of a record that is shown to the model: as long as a server shows its own */
const SHOWN = 1448;
/** Records between two looks at what the page has to say. */
const PIECE = { features: 4, whitening: 32, sums: 256 } as const;

export class FeatureSums {
  readonly #training: SumsTraining;
  readonly #classes: number;
  readonly #scattering: Scattering;
  readonly #pixels: number;
  /** maps times cells */
  readonly #size: number;
  #x: Float32Array = new Float32Array();
  #y: Int32Array = new Int32Array();
  #units: Units | null = null;
  #white: { units: Units; records: WhitenedRecords } | null = null;

  constructor(task: Task, training: SumsTraining) {
    const [channels, height, width] = task.input.shape as [number, number, number];
    this.#training = training;
    this.#classes = task.classes.length;
    this.#scattering = new Scattering([channels, height, width], training.extractor);
    const [maps, down, across] = this.#scattering.shape;
    if (maps !== training.maps || down * across !== training.cells) {
      throw new Refused(`this page cannot take part: scattering has ${maps} x ${down * across} features here, not ${training.maps} x ${training.cells}`);
    }
    this.#pixels = channels * height * width;
    this.#size = training.maps * training.cells;
    new NormalForm(training, 1); // refuses groups and roots that do not fit
  }

  /** The records, normalised, channel after channel. */
  take(x: Float32Array, y: Int32Array): void {
    [this.#x, this.#y, this.#units, this.#white] = [x, y, null, null];
  }

  async sum(parameters: Float32Array, { limits, whitening }: Summing, progress: Progress): Promise<Summed> {
    const units = await this.#wholeUnits(limits.unit, progress);
    if (whitening === null) return this.#secondMoments(units, progress);
    const records = await this.#whitened(units, whitening, limits.row, progress);
    return this.#gradients(parameters, records, units.y, limits.residual, progress);
  }

  /** Scores of the classes for one normalised record, by parameters, centre and matrix one after another. */
  scores(model: Float32Array, record: Float32Array): Float64Array {
    const { maps, cells, bias } = this.#training;
    const size = this.#classes * (this.#size + 1);
    const [centre, left] = [model.subarray(size, size + maps), model.subarray(size + maps, size + maps + maps * maps)];
    const z = new Float64Array(this.#size);
    whitenedBy({ left, centre }, new NormalForm(this.#training, SHOWN).whole(this.#scattering.features(record)), 0, cells, z);
    const length = Math.max(Math.sqrt(z.reduce((sum, value) => sum + value * value, 0)), 1e-12);
    return Float64Array.from({ length: this.#classes }, (_, k) => {
      let score = 0;
      for (let j = 0; j < z.length; j += 1) score += model[k * z.length + j]! * z[j]!;
      return score / length + bias * model[this.#classes * z.length + k]!;
    });
  }

  /** The normal forms of all records, each made once for a limit; who stops goes on where it was. */
  async #wholeUnits(limit: number, progress: Progress): Promise<Units> {
    if (this.#units?.limit !== limit) {
      const [x, y] = [this.#x, this.#y];
      this.#units = { x, y, limit, whole: new Int16Array(y.length * this.#size), done: 0 };
    }
    const units = this.#units;
    const form = new NormalForm(this.#training, limit);
    for (const count = units.y.length; units.done < count; ) {
      const features = this.#scattering.features(units.x, units.done * this.#pixels);
      units.whole.set(form.whole(features), units.done * this.#size);
      units.done += 1;
      if (units.done % PIECE.features === 0) await pause();
      progress(units.done, count, "features");
    }
    return units;
  }

  async #secondMoments({ whole, y, limit }: Units, progress: Progress): Promise<Summed> {
    const moments = new SecondMoments(this.#training.maps, this.#training.cells, limit);
    for (let i = 0; i < y.length; i += 1) {
      moments.add(whole, i * this.#size);
      if ((i + 1) % PIECE.whitening === 0) await pause();
      progress(i + 1, y.length, "training");
    }
    return { sums: moments.sums, parameters: null, clear: null, loss: null, seen: y.length, order: null };
  }

  /** The whitened records, made once for what a plan whitens by. */
  async #whitened(units: Units, by: Whitening, limit: number, progress: Progress): Promise<WhitenedRecords> {
    const made = this.#white;
    if (made?.units === units && made.records.limit === limit && same(made.records.by, by)) return made.records;
    const records = new WhitenedRecords(units.y.length, this.#training.cells, by, this.#training.bias, limit);
    for (let i = 0; i < records.count; i += 1) {
      records.set(i, units.whole, i * this.#size);
      if ((i + 1) % PIECE.whitening === 0) await pause();
      progress(i + 1, records.count, "features");
    }
    this.#white = { units, records };
    return records;
  }

  async #gradients(parameters: Float32Array, records: WhitenedRecords, y: Int32Array, limit: number, progress: Progress): Promise<Summed> {
    const { width, whole, scales, length, count } = records;
    const weights = wholeWeights(parameters, this.#size, this.#classes);
    const residuals = new Residuals(this.#classes, width, this.#training.clip, limit);
    const total = new Float64Array(weights.length);
    let loss = 0;
    for (let i = 0; i < count; i += 1) {
      const found = residuals.of(whole, i * width, scales[i]!, length, y[i]!, weights);
      addOuter(total, found.parts, whole, i * width, width);
      loss += found.loss;
      if ((i + 1) % PIECE.sums === 0) await pause();
      progress(i + 1, count, "training");
    }
    const sums = new Float64Array(weights.length);
    addFlat(sums, total, this.#size, this.#classes);
    return { sums, parameters: null, clear: null, loss: count ? loss / count : null, seen: count, order: null };
  }
}

function same(a: Whitening, b: Whitening): boolean {
  return a.left.every((value, i) => value === b.left[i]) && a.centre.every((value, i) => value === b.centre[i]);
}

/** Lets a worker hear what it was told meanwhile. */
function pause(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve));
}
