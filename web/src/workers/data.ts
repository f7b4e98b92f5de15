/** The data room: whatever a person brings, as normalised records. Nothing read here is sent anywhere. */
import { type Answer, Unanswered, fetched, readable } from "../wire/fetching.ts";
import { hex } from "../wire/frames.ts";
import { Refused } from "../wire/refusal.ts";
import type { Task } from "../wire/task.ts";
import { type Block, Blocks } from "./blocks.ts";
import { linesOf } from "./lines.ts";
import { type Picture, decoded, hasBrightEdge, resized } from "./pictures.ts";
import { type FirstLine, type Matched, type RawRecords, type Reading, type TableColumns, largestOf, readTable, tableColumns, valuesOf } from "./table.ts";

/** What a person can bring. Nothing of it leaves the page. */
export type DataSource =
  /** the federation's own public sample; the server says which part */
  | { kind: "sample" }
  /** pictures, sorted by class by whoever chose them */
  | { kind: "images"; classes: { label: number; files: File[] }[] }
  /** a table: numbers in columns, and the class in another one */
  | ({ kind: "csv"; file: File } & Reading)
  /** pictures drawn in the page: grey values 0 (background) to 255, row by row, of the given size */
  | { kind: "drawings"; drawings: Drawing[] };

export interface Drawing {
  label: number;
  width: number;
  height: number;
  pixels: Uint8Array;
}

/** What was found in the data, for the person alone. */
export interface DataSummary {
  records: number;
  /** how many of each class, in the order of the task's classes */
  perClass: number[];
  /** sentences for the person: what was skipped, and why */
  notes: string[];
  /** which columns of a table were taken */
  matched?: Matched;
}

export interface Loaded {
  /** normalised, in the shape of the task's input; none where no record can be used */
  blocks: Block[];
  summary: DataSummary;
}

/** Where a federation's sample is, for those who only want to try. */
export interface SamplePlace {
  server: string;
  federation: string;
  client: number;
}

const LARGEST_PICTURE = 50 * 2 ** 20;
/** normalised values at most: the largest float32 */
const LARGEST_VALUE = (2 - 2 ** -23) * 2 ** 127;

export class DataRoom {
  /** Reads what a person brings, for as many records as there is memory for; none that can be used is no error, which would tell of them. */
  async load(source: DataSource, task: Task, sample: SamplePlace | null): Promise<Loaded> {
    try {
      return loaded(await this.#read(source, task, sample), task);
    } catch (error) {
      if (error instanceof RangeError) throw new Refused("this browser has no memory left for your examples: close other programs, or take another device");
      throw error;
    }
  }

  #read(source: DataSource, task: Task, sample: SamplePlace | null): Promise<RawRecords> {
    switch (source.kind) {
      case "sample":
        if (!sample) throw new Refused("this federation's sample is known once you have joined");
        return readSample(sample, task).then(({ x, y, notes }) => ({ blocks: [{ x, y }], notes }));
      case "csv":
        return readTable(linesOf(source.file), task, source);
      case "images":
        return readPictures(source.classes, task);
      case "drawings":
        return Promise.resolve(readDrawings(source.drawings, task));
    }
  }
}

function loaded({ blocks, notes, matched }: RawRecords, task: Task): Loaded {
  const perClass = task.classes.map(() => 0);
  for (const block of blocks) {
    block.x = normalised(block.x, task);
    for (const label of block.y) perClass[label]! += 1;
  }
  const records = perClass.reduce((sum, number) => sum + number, 0);
  return { blocks, summary: { records, perClass, notes, ...(matched && { matched }) } };
}

/** (x - mean)/std in float32, with one constant or one per channel (feature); what is too large for that is the largest there is. */
export function normalised(x: Float32Array, { input }: Task): Float32Array<ArrayBuffer> {
  const [channels, ...sides] = input.shape;
  const each = sides.reduce((product, side) => product * side, 1);
  const mean = Float32Array.from(input.mean);
  const std = Float32Array.from(input.std);
  const result = new Float32Array(x.length);
  for (let i = 0; i < x.length; i += 1) {
    const channel = Math.floor(i / each) % channels!;
    const value = Math.fround(x[i]! - mean[mean.length === 1 ? 0 : channel]!) / std[std.length === 1 ? 0 : channel]!;
    result[i] = Math.max(-LARGEST_VALUE, Math.min(LARGEST_VALUE, value));
  }
  return result;
}

/** The raw values of a normalised record, of one channel. */
export function rawValues(record: Float32Array, { input }: Task): Float32Array<ArrayBuffer> {
  return Float32Array.from(record, (value) => value * input.std[0]! + input.mean[0]!);
}

// --- the federation's sample

interface Sample {
  count: number;
  shape: number[];
  dtype: "u8" | "f4";
  x: string;
  y: string;
  about?: string;
}

export async function readSample({ server, federation, client }: SamplePlace, task: Task): Promise<Block & { notes: string[] }> {
  const answer = await askedForSample(`${server}/api/federations/${encodeURIComponent(federation)}/sample?client=${client}`);
  if (!answer.ok) {
    const { error } = readable<{ error?: string }>(answer) ?? {};
    throw new Refused(error ?? "the server has no sample of this federation: bring records of your own");
  }
  const given = readable<Sample>(answer);
  if (!given) throw new Refused("the server's sample cannot be read: try again, or bring records of your own");
  const bytes = fromBase64(given.x);
  const x = given.dtype === "u8" ? Float32Array.from(bytes) : floats(bytes);
  const y = Int32Array.from(fromBase64(given.y));
  const size = valuesOf(task);
  if (given.shape.join() !== task.input.shape.join() || x.length !== given.count * size || y.length !== given.count || !x.every(Number.isFinite)) {
    throw new Refused("the server's sample does not fit its own task: tell whoever runs it, or bring records of your own");
  }
  if (y.some((label) => label >= task.classes.length)) throw new Refused("the server's sample has a label outside the classes");
  return { x, y, notes: given.about ? [given.about] : [] };
}

/** Whatever the server answers about its sample; one that does not come is refused. */
async function askedForSample(address: string): Promise<Answer> {
  try {
    return await fetched(address);
  } catch (error) {
    if (!(error instanceof Unanswered)) throw error;
    throw new Refused(`the sample could not be fetched (${error.why}): ${error.remedy}`);
  }
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

function floats(bytes: Uint8Array<ArrayBuffer>): Float32Array<ArrayBuffer> {
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

// --- tables

/** The columns of a table, by its first line or by what the person says of it. */
export async function columnsOf(file: File, task: Task, first?: FirstLine): Promise<TableColumns> {
  return tableColumns(linesOf(file), task, first);
}

// --- pictures

async function readPictures(classes: { label: number; files: File[] }[], task: Task): Promise<RawRecords> {
  requireImages(task, "pictures");
  const blocks = new Blocks(valuesOf(task));
  const [damaged, large]: [string[], string[]] = [[], []];
  let [all, turned, twice] = [0, 0, 0];
  /** by the first byte of their hashes: one set of all would be full before the memory is */
  const known = Array.from({ length: 256 }, () => new Set<string>());
  for (const { label, files } of classes) {
    requireClass(label, task);
    for (const file of files) {
      all += 1;
      const picture = file.size > LARGEST_PICTURE ? null : await decoded(file, task.input.shape[0]!);
      if (picture === null) {
        (file.size > LARGEST_PICTURE ? large : damaged).push(file.name);
        continue;
      }
      const fitted = fit(picture, task);
      const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", fitted.pixels));
      const [alike, record] = [known[hash[0]!]!, `${label} ${hex(hash)}`];
      if (alike.has(record)) {
        twice += 1;
        continue;
      }
      alike.add(record);
      turned += fitted.turned ? 1 : 0;
      blocks.add(fitted.pixels, label);
    }
  }
  const notes: string[] = [];
  if (twice) notes.push(`${twice} of ${all} pictures show the same as another one and are left out.`);
  if (damaged.length) notes.push(`${damaged.length} of ${all} files could not be read as pictures and were left out: ${few(damaged)}.`);
  if (large.length) notes.push(`Pictures above 50 MB were left out: ${few(large)}.`);
  if (turned) notes.push(`Pictures with a bright background (${turned}) were turned into light on dark, as this federation has them.`);
  return { blocks: blocks.end(), notes };
}

function readDrawings(drawings: Drawing[], task: Task): RawRecords {
  requireImages(task, "drawings");
  const blocks = new Blocks(valuesOf(task));
  for (const drawing of drawings) {
    requireClass(drawing.label, task);
    blocks.add(fit(ofDrawing(drawing, task), task, "as it is").pixels, drawing.label);
  }
  return { blocks: blocks.end(), notes: [] };
}

/** The values of one line of a table, in the order of the model's inputs: for predictions. */
export function valuesToRecord(values: ArrayLike<number>, task: Task): Float32Array<ArrayBuffer> {
  const size = valuesOf(task);
  if (values.length !== size) throw new Refused(`this federation's model takes ${size} values, not ${values.length}`);
  return normalised(Float32Array.from(values), task);
}

/** One grey picture in the task's raw pixels: for predictions. */
export function pictureToRecord(picture: { width: number; height: number; pixels: Uint8Array }, task: Task): Float32Array<ArrayBuffer> {
  requireImages(task, "a drawing");
  return normalised(fit(ofDrawing(picture, task), task, "as it is").pixels, task);
}

function ofDrawing({ width, height, pixels }: { width: number; height: number; pixels: Uint8Array }, task: Task): Picture {
  if (pixels.length !== width * height || pixels.length === 0) {
    throw new Refused(`a drawing of ${width} x ${height} has ${width * height} grey values, not ${pixels.length}`);
  }
  const channels = task.input.shape[0]!;
  const grey = Float32Array.from({ length: channels * pixels.length }, (_, i) => pixels[i % pixels.length]!);
  return { channels, width, height, pixels: grey };
}

/** At the task's size and in its raw values; light on dark, unless it is known to be. */
function fit(picture: Picture, { input, ...task }: Task, edge: "as it is" | "dark" = "dark"): { pixels: Float32Array<ArrayBuffer>; turned: boolean } {
  const [channels, height, width] = input.shape as [number, number, number];
  const pixels = resized(picture, width, height);
  const turned = edge === "dark" && channels === 1 && hasBrightEdge(pixels, width, height);
  const scale = largestOf({ input, ...task } as Task) / 255;
  return { pixels: pixels.map((value) => scale * (turned ? 255 - value : value)), turned };
}

function requireImages(task: Task, what: string): void {
  if (task.input.kind !== "image") throw new Refused(`this federation learns from tables, not from ${what}: choose a CSV file`);
}

function requireClass(label: number, task: Task): void {
  if (!(Number.isInteger(label) && label >= 0 && label < task.classes.length)) {
    throw new Refused(`the class ${label} is none of the ${task.classes.length} that this federation has`);
  }
}

function few(names: string[]): string {
  return names.length <= 3 ? names.join(", ") : `${names.slice(0, 3).join(", ")} and ${names.length - 3} more`;
}
