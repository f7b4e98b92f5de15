/**
 * Sums over all records on public features (docs/bits.md, "Sums on public features"): second moments of their normal form in
 * the first round, clipped gradients of a linear head on whitened records in all others. They are exact modulo 2^52, for any number
 * of records; the privacy room adds the noise. What a record adds is a function of that record and the plan alone.
 */
import { Refused } from "../wire/refusal.ts";
import type { Limits, SumsTraining, Task, Whitening } from "../wire/task.ts";
import { GradientSum, addFlat, wholeWeights } from "./linear_head.ts";
import { NormalForm } from "./normal_form.ts";
import { Scattering } from "./scattering.ts";
import { SecondMoments } from "./second_moments.ts";
import type { Doing, Progress, Trained } from "./training.ts";
import { type Memory, WhitenedRecords, Whitener, memoryFor } from "./whitened.ts";

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
/** Records between two looks at the time. */
const PIECE = 32;

export class FeatureSums {
  readonly #training: SumsTraining;
  readonly #classes: number;
  readonly #scattering: Scattering;
  readonly #pixels: number;
  /** maps times cells */
  readonly #size: number;
  #x: Float32Array = new Float32Array();
  #y: Int32Array = new Int32Array();
  #memory: { units: Int16Array; white: Memory } | null = null;
  #units: Units | null = null;
  #white: { units: Units; records: WhitenedRecords } | null = null;
  #sum: GradientSum | null = null;

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

  /**
   * The records, normalised, channel after channel. Their memory is taken now, before anybody waits for a report: training never
   * fails at the number of records.
   */
  take(x: Float32Array, y: Int32Array): void {
    [this.#x, this.#y, this.#units, this.#white, this.#memory] = [x, y, null, null, null];
    try {
      this.#memory = { units: new Int16Array(y.length * this.#size), white: memoryFor(y.length, this.#size + 1) };
    } catch {
      throw new Refused(`${y.length.toLocaleString("en")} records are more than this browser has memory for: choose fewer`);
    }
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

  /** The normal forms of all records, each made once for a limit; who stops goes on where it was. */
  async #wholeUnits(limit: number, progress: Progress): Promise<Units> {
    if (this.#units?.limit !== limit) {
      const [x, y] = [this.#x, this.#y];
      this.#units = { x, y, limit, whole: this.#memory?.units ?? new Int16Array(), done: 0 };
    }
    const units = this.#units;
    const form = new NormalForm(this.#training, limit);
    const turn = new Turn();
    for (const count = units.y.length; units.done < count; ) {
      units.whole.set(this.#wholeOf(units.x, units.done, form), units.done * this.#size);
      units.done += 1;
      if (turn.isOver) await turn.pass();
      progress(units.done, count, "features");
    }
    return units;
  }

  /** The normal form of one record; 0 where it fails: an error would end the sums of all others, and show the record. */
  #wholeOf(x: Float32Array, record: number, form: NormalForm): Float64Array {
    try {
      return form.whole(this.#scattering.features(x, record * this.#pixels));
    } catch {
      return new Float64Array(this.#size);
    }
  }

  async #secondMoments({ whole, y, limit }: Units, progress: Progress): Promise<Summed> {
    const moments = new SecondMoments(this.#training.maps, this.#training.cells, limit);
    await inPieces(y.length, (i, count) => moments.add(whole, i * this.#size, count), progress, "training");
    return { sums: moments.sums, parameters: null, clear: null, loss: null, seen: y.length, order: null };
  }

  /** The whitened records, made once for what a plan whitens by. */
  async #whitened(units: Units, by: Whitening, limit: number, progress: Progress): Promise<WhitenedRecords> {
    const made = this.#white;
    if (made?.units === units && made.records.limit === limit && same(made.records.by, by)) return made.records;
    this.#white = null; // the next takes its memory, and may be stopped half way
    const records = new WhitenedRecords(units.y.length, this.#training.cells, by, this.#training.bias, limit, this.#memory?.white);
    await inPieces(records.count, (i, count) => records.set(i, units.whole, i * this.#size, count), progress, "features");
    this.#white = { units, records };
    return records;
  }

  async #gradients(parameters: Float32Array, records: WhitenedRecords, y: Int32Array, limit: number, progress: Progress): Promise<Summed> {
    const { width, whole, scales, length, count } = records;
    const weights = wholeWeights(parameters, this.#size, this.#classes);
    if (this.#sum?.limit !== limit) this.#sum = new GradientSum(this.#classes, width, this.#training.clip, limit);
    const gradients = this.#sum;
    gradients.begin(weights);
    await inPieces(count, (first, some) => {
      for (let i = first; i < first + some; i += 1) {
        gradients.add(whole.subarray(i * width, (i + 1) * width), scales[i]!, length, y[i]!);
      }
    }, progress, "training");
    const { total, losses } = gradients.now;
    const sums = new Float64Array(weights.length);
    addFlat(sums, total, this.#size, this.#classes);
    return { sums, parameters: null, clear: null, loss: count ? losses / count : null, seen: count, order: null };
  }
}

function same(a: Whitening, b: Whitening): boolean {
  return a.left.every((value, i) => value === b.left[i]) && a.centre.every((value, i) => value === b.centre[i]);
}

/** Does something to all of `count` records, some at a time. */
async function inPieces(count: number, work: (first: number, count: number) => void, progress: Progress, doing: Doing): Promise<void> {
  const turn = new Turn();
  for (let done = 0; done < count; ) {
    const some = Math.min(PIECE, count - done);
    work(done, some);
    done += some;
    if (turn.isOver) await turn.pass();
    progress(done, count, doing);
  }
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
