/** The data room: whatever a person brings, as normalised records. Nothing read here is sent anywhere. */
import { type Answer, Unanswered, fetched, readable } from "../wire/fetching.ts";
import { hex } from "../wire/frames.ts";
import { Refused } from "../wire/refusal.ts";
import type { Task } from "../wire/task.ts";
import { type Picture, decoded, hasBrightEdge, resized } from "./pictures.ts";
import { type Matched, type RawRecords, type Reading, type Separator, type TableColumns, beyondWords, largestOf, mostRecords, readTable, tableColumns } from "./table.ts";

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
  /** normalised, in the shape of the task's input */
  x: Float32Array<ArrayBuffer>;
  y: Int32Array<ArrayBuffer>;
  summary: DataSummary;
}

/** Where a federation's sample is, for those who only want to try. */
export interface SamplePlace {
  server: string;
  federation: string;
  client: number;
}

const MEGABYTE = 2 ** 20;
const LARGEST_TABLE = 200 * MEGABYTE;
const LONGEST_HEADER = 4 * MEGABYTE;
const LARGEST_PICTURE = 50 * MEGABYTE;
const MOST_PICTURES = 20_000;
/** normalised values at most: the largest float32 */
const LARGEST_VALUE = (2 - 2 ** -23) * 2 ** 127;

export class DataRoom {
  async load(source: DataSource, task: Task, sample: SamplePlace | null): Promise<Loaded> {
    const raw = await this.#read(source, task, sample);
    const [x, y, notes] = [normalised(raw.x, task), Int32Array.from(raw.y), raw.notes];
    if (y.length === 0) throw new Refused(["there is not one record to learn from: choose some more", ...notes].join(". "));
    const perClass = task.classes.map((_, k) => y.reduce((sum, label) => sum + (label === k ? 1 : 0), 0));
    return { x, y, summary: { records: y.length, perClass, notes, ...(raw.matched && { matched: raw.matched }) } };
  }

  #read(source: DataSource, task: Task, sample: SamplePlace | null): Promise<RawRecords> {
    switch (source.kind) {
      case "sample":
        if (!sample) throw new Refused("this federation's sample is known once you have joined");
        return readSample(sample, task);
      case "csv":
        return readFile(source.file, task, source);
      case "images":
        return readPictures(source.classes, task);
      case "drawings":
        return Promise.resolve(readDrawings(source.drawings, task));
    }
  }
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

export async function readSample({ server, federation, client }: SamplePlace, task: Task): Promise<RawRecords> {
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
  const size = task.input.shape.reduce((product, side) => product * side, 1);
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

function floats(bytes: Uint8Array<ArrayBuffer>): Float32Array {
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

// --- tables

async function readFile(file: File, task: Task, reading: Reading): Promise<RawRecords> {
  return readTable(await textOf(file, file), task, reading);
}

/** The columns of a table, by its first line. */
export async function columnsOf(file: File, task: Task, headerless?: Separator): Promise<TableColumns> {
  return tableColumns(await textOf(file, file.slice(0, LONGEST_HEADER)), task, headerless);
}

/** Bytes that are no text become a sign that is in no number and no class: they spoil their own line alone. */
async function textOf(file: File, part: Blob): Promise<string> {
  if (file.size > LARGEST_TABLE) throw tooLarge(file, LARGEST_TABLE, "Take a part of it, say its first 10,000 lines");
  const bytes = await part.arrayBuffer().catch(() => null);
  if (bytes === null) throw new Refused(`"${file.name}" cannot be read; perhaps it was moved: choose it again`);
  return new TextDecoder("utf-8").decode(bytes);
}

function tooLarge(file: File, most: number, remedy: string): Refused {
  const size = file.size >= 2 ** 30 ? `${(file.size / 2 ** 30).toFixed(1)} GB` : `${Math.ceil(file.size / MEGABYTE)} MB`;
  return new Refused(`"${file.name}" has ${size}; ${most / MEGABYTE} MB are the most that this page reads. ${remedy}`);
}

// --- pictures

async function readPictures(classes: { label: number; files: File[] }[], task: Task): Promise<RawRecords> {
  requireImages(task, "pictures");
  const chosen = classes.flatMap(({ label, files }) => files.map((file) => ({ label, file })));
  const most = Math.min(MOST_PICTURES, mostRecords(task));
  const beyond = chosen.splice(most).length;
  const found: { label: number; pixels: Float32Array }[] = [];
  const [damaged, large]: [string[], string[]] = [[], []];
  let [turned, twice] = [0, 0];
  const known = new Set<string>();
  for (const { label, file } of chosen) {
    requireClass(label, task);
    if (file.size > LARGEST_PICTURE) {
      large.push(file.name);
      continue;
    }
    const picture = await decoded(file, task.input.shape[0]!);
    if (!picture) damaged.push(file.name);
    else {
      const fitted = fit(picture, task);
      const record = `${label} ${hex(new Uint8Array(await crypto.subtle.digest("SHA-256", fitted.pixels)))}`;
      if (known.has(record)) {
        twice += 1;
        continue;
      }
      known.add(record);
      turned += fitted.turned ? 1 : 0;
      found.push({ label, pixels: fitted.pixels });
    }
  }
  if (found.length === 0 && chosen.length > 0) {
    throw new Refused(`none of these files can be read as a picture (${few([...damaged, ...large])}): choose PNG or JPEG files up to 50 MB`);
  }
  const notes = beyondWords(beyond, most);
  if (twice) notes.push(`${twice} of ${chosen.length} pictures show the same as another one and are left out.`);
  if (damaged.length) notes.push(`${damaged.length} of ${chosen.length} files could not be read as pictures and were left out: ${few(damaged)}.`);
  if (large.length) notes.push(`Pictures above 50 MB were left out: ${few(large)}.`);
  if (turned) notes.push(`Pictures with a bright background (${turned} of ${found.length}) were turned into light on dark, as this federation has them.`);
  return { ...stacked(found), notes };
}

function readDrawings(drawings: Drawing[], task: Task): RawRecords {
  requireImages(task, "drawings");
  const most = mostRecords(task);
  const found = drawings.slice(0, most).map((drawing) => {
    requireClass(drawing.label, task);
    return { label: drawing.label, pixels: fit(ofDrawing(drawing, task), task, "as it is").pixels };
  });
  return { ...stacked(found), notes: beyondWords(drawings.length - found.length, most) };
}

/** The values of one line of a table, in the order of the model's inputs: for predictions. */
export function valuesToRecord(values: ArrayLike<number>, task: Task): Float32Array<ArrayBuffer> {
  const size = task.input.shape.reduce((product, side) => product * side, 1);
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

function stacked(found: { label: number; pixels: Float32Array }[]): { x: Float32Array; y: Int32Array } {
  const each = found[0]?.pixels.length ?? 0;
  const x = new Float32Array(found.length * each);
  found.forEach(({ pixels }, i) => x.set(pixels, i * each));
  return { x, y: Int32Array.from(found, ({ label }) => label) };
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
