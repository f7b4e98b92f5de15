/**
 * Networks from a task's layers: scores and gradients.
 *
 * Records are kept channels last, with channels padded to a multiple of 4 by zeros; convolutions are im2col and a product
 * of matrices.
 */
import type { Layer, Model, Task } from "../wire/task.ts";
import type { Multiplier } from "./multiply.ts";
import type { Records } from "./records.ts";

type Dense = Extract<Layer, { kind: "dense" }>;
type Activation = "relu" | "elu" | "tanh";
const ACTIVATIONS: ReadonlySet<string> = new Set(["relu", "elu", "tanh"]); // computed in place
type Conv = Extract<Layer, { kind: "conv" }>;

/** A record somewhere in the network: its sides, and its channels with and without padding. */
interface Form {
  height: number;
  width: number;
  channels: number;
  padded: number;
}

/** A layer with parameters: where they lie in the flat vector, and the matrix that they form here. */
interface Weights {
  /** rows of the matrix; the bias is apart */
  inputs: number;
  /** columns, padded */
  outputs: number;
  /** for each place of the matrix the place in the flat vector, -1 for padding */
  places: Int32Array;
  /** the same for the bias */
  bias: Int32Array;
}

export interface Step {
  layer: Layer;
  before: Form;
  after: Form;
  weights: Weights | null;
}

/** A layer's weights `[inputs, outputs]`, transposed too, and its bias. */
interface Matrix {
  values: Float32Array;
  turned: Float32Array;
  bias: Float32Array;
}

export type Matrices = ReadonlyMap<Step, Matrix>;

/** What a layer leaves for the way back. */
interface Trace {
  step: Step;
  /** input rows of a product: `[rows, inputs]` */
  rows?: Float32Array;
  matrix?: Matrix;
  /** outputs of an activation, or the chosen places of a pool */
  outputs?: Float32Array;
  chosen?: Int32Array;
}

export interface Batch {
  /** records in the network's own layout (see `Network.arrange`), one after another */
  x: Float32Array;
  y: ArrayLike<number>;
  /** how many there are; x may hold rows of zeros after them */
  size: number;
}

export interface Gradient {
  loss: number;
  gradient: Float64Array;
}

/** Large arrays that are used again: fetching fresh memory for each takes longer than what is computed in it. */
class Memory {
  readonly #free = new Map<number, ArrayBuffer[]>();

  /** For one call; others may run at the same time. */
  borrow(): Scratch {
    const taken: ArrayBuffer[] = [];
    return {
      take: (length) => {
        const used = this.#free.get(4 * length)?.pop();
        if (used) new Uint8Array(used).fill(0); // nothing of one record is there for another
        const buffer = used ?? new ArrayBuffer(4 * length);
        taken.push(buffer);
        return buffer;
      },
      giveBack: () => {
        for (const buffer of taken.splice(0)) {
          const alike = this.#free.get(buffer.byteLength) ?? [];
          if (alike.length < 4) alike.push(buffer);
          this.#free.set(buffer.byteLength, alike);
        }
      },
    };
  }
}

interface Scratch {
  /** room for so many numbers of 32 bits, all 0 */
  take(length: number): ArrayBuffer;
  giveBack(): void;
}

const padded = (count: number): number => 4 * Math.ceil(count / 4);
const volume = (form: Form): number => form.height * form.width * form.padded;

export class Network {
  readonly size: number;
  readonly classes: number;
  readonly #steps: Step[] = [];
  readonly #input: Form;
  readonly #lossName: Task["loss"];
  readonly #multiplier: Multiplier;
  readonly #memory = new Memory();

  constructor(model: Model, shape: readonly number[], classes: number, loss: Task["loss"], multiplier: Multiplier) {
    const [channels, height = 1, width = 1] = shape;
    this.#input = { channels: channels!, padded: channels!, height, width };
    this.#lossName = loss;
    this.#multiplier = multiplier;
    this.size = model.size;
    this.classes = classes;
    let form = this.#input;
    for (const layer of model.layers) {
      const step = this.#step(layer, form, model);
      this.#steps.push(step);
      form = step.after;
    }
  }

  #step(layer: Layer, before: Form, model: Model): Step {
    const place = (name: string) => model.parameters.find((parameter) => parameter.name === name)!.first;
    if (layer.kind === "conv") {
      const after = {
        channels: layer.outputs, padded: padded(layer.outputs),
        height: before.height + 2 * layer.padding - layer.kernel + 1,
        width: before.width + 2 * layer.padding - layer.kernel + 1,
      };
      const places = convPlaces(layer, before, after, place(`${layer.name}.weight`));
      return { layer, before, after, weights: weightsOf(places, after, place(`${layer.name}.bias`)) };
    }
    if (layer.kind === "dense") {
      const after = { channels: layer.outputs, padded: padded(layer.outputs), height: 1, width: 1 };
      const places = densePlaces(layer, before, after, place(`${layer.name}.weight`));
      return { layer, before, after, weights: weightsOf(places, after, place(`${layer.name}.bias`)) };
    }
    if (layer.kind === "max-pool") {
      const after = { ...before, height: before.height >> 1, width: before.width >> 1 };
      return { layer, before, after, weights: null };
    }
    return { layer, before, after: before, weights: null }; // what is flattened stays where it lies
  }

  /** Records `[n, channels, height, width]` (or `[n, features]`) in the network's own layout. */
  arrange(records: Float32Array, count: number): Float32Array {
    const { channels, height, width } = this.#input;
    const pixels = height * width;
    if (pixels === 1 || channels === 1) return records;
    const result = new Float32Array(records.length);
    for (let i = 0; i < count; i += 1) {
      const at = i * channels * pixels;
      for (let c = 0; c < channels; c += 1) {
        for (let p = 0; p < pixels; p += 1) result[at + p * channels + c] = records[at + c * pixels + p]!;
      }
    }
    return result;
  }

  /** Numbers of one record. */
  get recordSize(): number {
    return volume(this.#input);
  }

  /** Some records as a batch; rows of zeros fill it up, so that few different sizes have to be compiled. */
  batch(records: Records, chosen: ArrayLike<number>): Batch {
    const each = this.recordSize;
    const rows = chosen.length <= 8 ? chosen.length : 8 * Math.ceil(chosen.length / 8);
    const picked = new Float32Array(rows * each);
    const labels = new Int32Array(chosen.length);
    for (let i = 0; i < chosen.length; i += 1) {
      const { x, first, label } = records.at(chosen[i]!);
      picked.set(x.subarray(first, first + each), i * each);
      labels[i] = label;
    }
    return { x: picked, y: labels, size: chosen.length };
  }

  /** Scores `[size, classes]`. */
  async scores(parameters: Float32Array, batch: Pick<Batch, "x" | "size">): Promise<Float32Array> {
    const scratch = this.#memory.borrow();
    const { outputs } = await this.#forward(this.matrices(parameters), batch.x, scratch);
    const across = this.#steps.at(-1)!.after.padded;
    const scores = new Float32Array(batch.size * this.classes);
    for (let i = 0; i < batch.size; i += 1) scores.set(outputs.subarray(i * across, i * across + this.classes), i * this.classes);
    scratch.giveBack();
    return scores;
  }

  /** The parameters as the matrices that records are multiplied by: for many batches at the same parameters. */
  matrices(parameters: Float32Array): Matrices {
    const made = new Map<Step, Matrix>();
    for (const step of this.#steps) {
      if (!step.weights) continue;
      const { places, bias, inputs, outputs } = step.weights;
      const values = gathered(parameters, places);
      made.set(step, { values, turned: transposed(values, inputs, outputs), bias: gathered(parameters, bias) });
    }
    return made;
  }

  /** The gradient of the mean loss over a batch. */
  async gradient(at: Matrices, batch: Batch): Promise<Gradient> {
    const scratch = this.#memory.borrow();
    const { outputs, traces } = await this.#forward(at, batch.x, scratch);
    const { losses, errors } = this.#errors(outputs, batch);
    const weight = 1 / batch.size;
    const gradient = new Float64Array(this.size);
    await this.#backward(traces, errors, scratch, async (trace, error, rows) => {
      await this.#addProduct(gradient, trace, error, rows, weight);
    });
    scratch.giveBack();
    return { loss: losses.reduce((sum, loss) => sum + loss, 0) * weight, gradient };
  }

  // --- forward

  async #forward(at: Matrices, x: Float32Array, scratch: Scratch): Promise<{ outputs: Float32Array; traces: Trace[] }> {
    let values = ACTIVATIONS.has(this.#steps.find(({ layer }) => layer.kind !== "flatten")!.layer.kind) ? x.slice() : x;
    const records = x.length / this.recordSize;
    const traces: Trace[] = [];
    for (const step of this.#steps) {
      const { trace, outputs } = await this.#through(step, at, values, records, scratch);
      traces.push(trace);
      values = outputs;
    }
    return { outputs: values, traces };
  }

  async #through(
    step: Step, at: Matrices, values: Float32Array, records: number, scratch: Scratch,
  ): Promise<{ trace: Trace; outputs: Float32Array }> {
    const { layer, before, after, weights } = step;
    if (weights) {
      const rows = layer.kind === "conv" ? imageToColumns(values, records, before, after, layer, scratch) : values;
      const matrix = at.get(step)!;
      const count = rows.length / weights.inputs;
      const outputs = await this.#multiplier.multiply(rows, matrix.values, count, weights.inputs, weights.outputs);
      addToRows(outputs, matrix.bias);
      return { trace: { step, rows, matrix }, outputs };
    }
    if (layer.kind === "max-pool") {
      const { outputs, chosen } = pool(values, records, before, after, scratch);
      return { trace: { step, chosen }, outputs };
    }
    if (layer.kind === "flatten") return { trace: { step }, outputs: values };
    activate(layer.kind as Activation, values);
    return { trace: { step, outputs: values }, outputs: values };
  }

  // --- loss

  /** Losses of the batch's records, and the derivative of each record's own loss by its scores. */
  #errors(outputs: Float32Array, batch: Batch): { losses: Float64Array; errors: Float32Array } {
    const across = this.#steps.at(-1)!.after.padded;
    const errors = new Float32Array(outputs.length);
    const losses = new Float64Array(batch.size);
    const write = this.#lossName === "cross-entropy" ? crossEntropy : oneVersusRest;
    for (let i = 0; i < batch.size; i += 1) {
      const at = i * across;
      losses[i] = write(outputs.subarray(at, at + this.classes), batch.y[i]!, errors.subarray(at, at + this.classes));
    }
    return { losses, errors };
  }

  // --- backward

  /** Goes back through the layers; `visit` is given the errors `[rows, outputs]` at each layer with parameters. */
  async #backward(
    traces: Trace[], errors: Float32Array, scratch: Scratch, visit: (trace: Trace, error: Float32Array, rows: number) => Promise<void>,
  ): Promise<void> {
    const firstWithWeights = traces.findIndex((trace) => trace.step.weights);
    let error = errors;
    for (let i = traces.length - 1; i >= firstWithWeights; i -= 1) {
      const trace = traces[i]!;
      const { step } = trace;
      if (step.weights) {
        const rows = trace.rows!.length / step.weights.inputs;
        await visit(trace, error, rows);
        if (i > firstWithWeights) error = await this.#errorBefore(trace, error, rows, scratch);
      } else if (trace.chosen) {
        error = unpooled(error, trace.chosen, (error.length / volume(step.after)) * volume(step.before), scratch);
      } else if (trace.outputs) {
        goBackThrough(step.layer.kind as Activation, error, trace.outputs);
      }
    }
  }

  async #errorBefore({ step, matrix }: Trace, error: Float32Array, rows: number, scratch: Scratch): Promise<Float32Array> {
    const { inputs, outputs } = step.weights!;
    const columns = await this.#multiplier.multiply(error, matrix!.turned, rows, outputs, inputs);
    if (step.layer.kind !== "conv") return columns;
    return columnsToImage(columns, rows / (step.after.height * step.after.width), step.before, step.after, step.layer, scratch);
  }

  /** Adds weight * rows^T error, and the bias's sum, to the gradient. */
  async #addProduct(gradient: Float64Array, trace: Trace, error: Float32Array, rows: number, weight: number): Promise<void> {
    const { inputs, outputs, places, bias } = trace.step.weights!;
    const product = await this.#multiplier.multiplyTransposed(trace.rows!, error, rows, inputs, outputs);
    scatter(gradient, product, places, weight);
    scatter(gradient, columnSums(error, outputs), bias, weight);
  }
}

// --- places of parameters

function convPlaces(layer: Conv, before: Form, after: Form, first: number): Int32Array {
  const { kernel } = layer;
  const places = new Int32Array(kernel * kernel * before.padded * after.padded).fill(-1);
  for (let i = 0; i < kernel; i += 1) {
    for (let j = 0; j < kernel; j += 1) {
      for (let c = 0; c < before.channels; c += 1) {
        const row = (i * kernel + j) * before.padded + c;
        for (let o = 0; o < after.channels; o += 1) {
          places[row * after.padded + o] = first + ((o * before.channels + c) * kernel + i) * kernel + j;
        }
      }
    }
  }
  return places;
}

/** The weights of a dense layer take their inputs in the order channel, row, column; here channels come last. */
function densePlaces(layer: Dense, before: Form, after: Form, first: number): Int32Array {
  const pixels = before.height * before.width;
  const places = new Int32Array(pixels * before.padded * after.padded).fill(-1);
  for (let p = 0; p < pixels; p += 1) {
    for (let c = 0; c < before.channels; c += 1) {
      const row = p * before.padded + c;
      for (let o = 0; o < after.channels; o += 1) places[row * after.padded + o] = first + o * layer.inputs + c * pixels + p;
    }
  }
  return places;
}

function weightsOf(places: Int32Array, after: Form, firstOfBias: number): Weights {
  const bias = Int32Array.from({ length: after.padded }, (_, o) => (o < after.channels ? firstOfBias + o : -1));
  return { inputs: places.length / after.padded, outputs: after.padded, places, bias };
}

function gathered(parameters: Float32Array, places: Int32Array): Float32Array {
  const values = new Float32Array(places.length);
  for (let i = 0; i < places.length; i += 1) if (places[i]! >= 0) values[i] = parameters[places[i]!]!;
  return values;
}

function scatter(target: Float64Array, values: ArrayLike<number>, places: Int32Array, weight: number): void {
  for (let i = 0; i < places.length; i += 1) if (places[i]! >= 0) target[places[i]!]! += weight * values[i]!;
}

// --- rows and columns

function addToRows(rows: Float32Array, bias: Float32Array): void {
  const n = bias.length;
  for (let at = 0; at < rows.length; at += n) for (let j = 0; j < n; j += 1) rows[at + j]! += bias[j]!;
}

function columnSums(rows: Float32Array, n: number): Float64Array {
  const sums = new Float64Array(n);
  for (let at = 0; at < rows.length; at += n) for (let j = 0; j < n; j += 1) sums[j]! += rows[at + j]!;
  return sums;
}

function transposed(matrix: Float32Array, rows: number, columns: number): Float32Array {
  const result = new Float32Array(matrix.length);
  for (let i = 0; i < rows; i += 1) for (let j = 0; j < columns; j += 1) result[j * rows + i] = matrix[i * columns + j]!;
  return result;
}

// --- convolutions

// The two loops below are one and the same but for the innermost line: a function called there would take most of the time.

function imageToColumns(
  x: Float32Array, records: number, before: Form, after: Form, { kernel, padding }: Conv, scratch: Scratch,
): Float32Array {
  const channels = before.padded;
  const across = before.width * channels;
  const run = kernel * channels;
  const buffer = scratch.take(records * after.height * after.width * kernel * run);
  // copied as whole numbers, which spares the way to double precision and back
  const [columns, image32] = [new Int32Array(buffer), new Int32Array(x.buffer, x.byteOffset, x.length)];
  let column = 0;
  for (let record = 0; record < records; record += 1) {
    const image = record * before.height * across;
    for (let row = 0; row < after.height; row += 1) {
      for (let place = 0; place < after.width; place += 1, column += kernel * run) {
        const left = Math.max(0, padding - place);
        const length = (Math.min(kernel, before.width + padding - place) - left) * channels;
        const last = Math.min(kernel, before.height + padding - row);
        for (let i = Math.max(0, padding - row); i < last; i += 1) {
          const from = image + (row + i - padding) * across + (place + left - padding) * channels;
          const to = column + i * run + left * channels;
          for (let t = 0; t < length; t += 1) columns[to + t] = image32[from + t]!;
        }
      }
    }
  }
  return new Float32Array(buffer);
}

function columnsToImage(
  columns: Float32Array, records: number, before: Form, after: Form, { kernel, padding }: Conv, scratch: Scratch,
): Float32Array {
  const channels = before.padded;
  const across = before.width * channels;
  const run = kernel * channels;
  const x = new Float32Array(scratch.take(records * volume(before)));
  let column = 0;
  for (let record = 0; record < records; record += 1) {
    const image = record * before.height * across;
    for (let row = 0; row < after.height; row += 1) {
      for (let place = 0; place < after.width; place += 1, column += kernel * run) {
        const left = Math.max(0, padding - place);
        const length = (Math.min(kernel, before.width + padding - place) - left) * channels;
        const last = Math.min(kernel, before.height + padding - row);
        for (let i = Math.max(0, padding - row); i < last; i += 1) {
          const to = image + (row + i - padding) * across + (place + left - padding) * channels;
          const from = column + i * run + left * channels;
          for (let t = 0; t < length; t += 1) x[to + t]! += columns[from + t]!;
        }
      }
    }
  }
  return x;
}

// --- pools and activations

function pool(
  x: Float32Array, records: number, before: Form, after: Form, scratch: Scratch,
): { outputs: Float32Array; chosen: Int32Array } {
  const outputs = new Float32Array(scratch.take(records * volume(after)));
  const chosen = new Int32Array(scratch.take(outputs.length));
  const channels = before.padded;
  const across = before.width * channels;
  let at = 0;
  for (let record = 0; record < records; record += 1) {
    for (let y = 0; y < after.height; y += 1) {
      for (let column = 0; column < after.width; column += 1) {
        const corner = (record * before.height + 2 * y) * across + 2 * column * channels;
        for (let c = 0; c < channels; c += 1, at += 1) {
          let best = corner + c;
          if (x[best + channels]! > x[corner + c]!) best = corner + c + channels;
          if (x[corner + c + across]! > x[best]!) best = corner + c + across;
          if (x[corner + c + across + channels]! > x[best]!) best = corner + c + across + channels;
          outputs[at] = x[best]!;
          chosen[at] = best;
        }
      }
    }
  }
  return { outputs, chosen };
}

function unpooled(error: Float32Array, chosen: Int32Array, length: number, scratch: Scratch): Float32Array {
  const result = new Float32Array(scratch.take(length));
  for (let i = 0; i < chosen.length; i += 1) result[chosen[i]!]! += error[i]!;
  return result;
}

function activate(kind: Activation, x: Float32Array): void {
  if (kind === "relu") for (let i = 0; i < x.length; i += 1) x[i] = Math.max(0, x[i]!); // what is no number stays none
  else if (kind === "elu") for (let i = 0; i < x.length; i += 1) x[i] = x[i]! > 0 ? x[i]! : Math.expm1(x[i]!);
  else for (let i = 0; i < x.length; i += 1) x[i] = Math.tanh(x[i]!);
}

/** Multiplies errors by the slope of an activation, which its outputs y tell. */
function goBackThrough(kind: Activation, error: Float32Array, y: Float32Array): void {
  if (kind === "relu") for (let i = 0; i < y.length; i += 1) error[i] = y[i]! > 0 ? error[i]! : 0;
  else if (kind === "elu") for (let i = 0; i < y.length; i += 1) error[i]! *= y[i]! > 0 ? 1 : y[i]! + 1;
  else for (let i = 0; i < y.length; i += 1) error[i]! *= 1 - y[i]! * y[i]!;
}

// --- losses: of one record's scores; writes the derivative

function crossEntropy(scores: Float32Array, label: number, error: Float32Array): number {
  const largest = scores.reduce((most, score) => Math.max(most, score), -Infinity);
  let total = 0;
  for (const score of scores) total += Math.exp(score - largest);
  for (let c = 0; c < scores.length; c += 1) error[c] = Math.exp(scores[c]! - largest) / total - (c === label ? 1 : 0);
  return Math.log(total) + largest - scores[label]!;
}

function oneVersusRest(scores: Float32Array, label: number, error: Float32Array): number {
  let loss = 0;
  for (let c = 0; c < scores.length; c += 1) {
    const score = scores[c]!;
    const truth = c === label ? 1 : 0;
    error[c] = 1 / (1 + Math.exp(-score)) - truth;
    loss += Math.max(score, 0) - score * truth + Math.log1p(Math.exp(-Math.abs(score)));
  }
  return loss;
}

/** Probabilities of classes from scores, for showing. */
export function probabilities(scores: Float32Array, loss: Task["loss"]): number[] {
  if (loss === "one-versus-rest") {
    const each = Array.from(scores, (score) => 1 / (1 + Math.exp(-score)));
    const total = each.reduce((sum, p) => sum + p, 0);
    return each.map((p) => p / total);
  }
  const largest = Math.max(...scores);
  const each = Array.from(scores, (score) => Math.exp(score - largest));
  const total = each.reduce((sum, p) => sum + p, 0);
  return each.map((p) => p / total);
}
