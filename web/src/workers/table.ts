/** Tables of numbers: one record a line, its class in one of the columns. */
import { Refused } from "../wire/refusal.ts";
import type { Task } from "../wire/task.ts";

export interface RawRecords {
  /** raw values, record after record, as the task's input has them */
  x: Float32Array;
  y: Int32Array;
  notes: string[];
  /** which columns of a table became what */
  matched?: Matched;
}

/** Columns by the names that a table gives them: what is learnt from, in the model's order, and the class. */
export interface Matched {
  columns: string[];
  label: string;
}

const MOST_PROBLEMS = 3;
const MOST_RANGES = 20;
/** what the column of the class is usually called */
const USUAL = /^(class|label|target|y)$/i;

/** What may stand between the cells of a line. */
const SEPARATORS = [",", ";", "\t"] as const;
export type Separator = (typeof SEPARATORS)[number];

/** What a person says of a table. No record says any of it: one that did would decide how all others are read. */
export interface Reading {
  /** where the class stands in a line, from 0 on; left out where the header tells */
  label?: number;
  /** that the first line is a record, and what stands between cells; left out where the first line has the names of columns */
  headerless?: Separator;
}

/** The columns of a table, by its header or by what its federation takes. */
export interface TableColumns {
  names: string[];
  /** where the class may stand */
  candidates: number[];
  /** where it stands; null where the person has to say */
  label: number | null;
}

/** Where the values of a record stand in a line. */
interface Columns {
  /** of each value, in the model's order */
  positions: number[];
  label: number;
  /** what each cell of a line is called */
  names: string[];
  separator: Separator;
  notes: string[];
}

/** Reads a table; a line that does not fit is left out, and named for the person alone. */
export function readTable(text: string, task: Task, reading: Reading = {}): RawRecords {
  const lines = linesOf(text);
  if (lines.length === 0) throw new Refused("this table is empty: choose a file with one record a line");
  const columns = columnsIn(lines[0]!.text, task, reading);
  if (reading.headerless === undefined) lines.shift();
  if (lines.length === 0) throw new Refused("this table has a header and no records: choose a file with one record a line");
  const most = mostRecords(task);
  const beyond = lines.splice(most).length;
  const width = columns.positions.length;
  const x = new Float32Array(lines.length * width);
  const y = new Int32Array(lines.length);
  let taken = 0;
  const problems: string[] = [];
  const others: number[] = [];
  for (const { text: own, line } of lines) {
    const at = taken;
    const values = x.subarray(at * width, (at + 1) * width);
    const problem = readLine(cellsOf(own, columns.separator), columns, task, values, (k) => (y[at] = k));
    if (problem === null) taken += 1;
    else if (problems.length < MOST_PROBLEMS) problems.push(`line ${line}${problem}`);
    else others.push(line);
  }
  const left = problems.length + others.length;
  const why = `${problems.join("; ")}${others.length ? `; and line${others.length > 1 ? "s" : ""} ${ranges(others)}` : ""}`;
  if (taken === 0) throw new Refused(`no line of this table can be used: ${why}. Correct them and choose the file again`);
  const notes = [...columns.notes, ...beyondWords(beyond, most)];
  if (left) notes.push(`${left} of ${lines.length} lines cannot be used and are left out: ${why}.`);
  const matched = { columns: columns.positions.map((k) => columns.names[k]!), label: columns.names[columns.label]! };
  return { x: x.slice(0, taken * width), y: y.slice(0, taken), notes, matched };
}

/** The columns of a table that begins with this text, for a person to say which of them is the class. */
export function tableColumns(beginning: string, task: Task, headerless?: Separator): TableColumns {
  const [first] = linesOf(beginning);
  if (!first) throw new Refused("this table is empty: choose a file with one record a line");
  return headerless === undefined ? ofHeader(namesIn(first.text).names, task) : ofTask(task);
}

function columnsIn(first: string, task: Task, { label: said, headerless }: Reading): Columns {
  const { names, separator } = headerless === undefined ? namesIn(first) : { names: ofTask(task).names, separator: headerless };
  const { candidates, label: known } = headerless === undefined ? ofHeader(names, task) : ofTask(task);
  const label = said ?? known;
  if (label === null) {
    throw new Refused(`this table does not say which of its columns is the class: choose one of ${listed(candidates.map((k) => names[k]!))}`);
  }
  if (!candidates.includes(label)) {
    throw new Refused(`the column "${names[label] ?? label + 1}" is none for the class: choose one of ${listed(candidates.map((k) => names[k]!))}`);
  }
  const positions = task.input.columns?.map(({ name }) => columnOf(names, name)) ?? names.map((_, k) => k).filter((k) => k !== label);
  const extra = names.filter((_, k) => k !== label && !positions.includes(k));
  const notes = extra.length ? [`This federation does not use ${listed(extra)}: left out.`] : [];
  return { positions, label, names, separator, notes };
}

/** The columns of a header. It is public, and the same for all records. */
function ofHeader(names: string[], task: Task): TableColumns {
  const wanted = task.input.columns?.map(({ name }) => name) ?? [];
  const positions = wanted.map((name) => columnOf(names, name));
  const missing = wanted.filter((_, k) => positions[k]! < 0);
  if (missing.length) {
    throw new Refused(`the first line of this table lacks ${missing.length === 1 ? "the column" : "the columns"} ${listed(missing)}: write the names of all columns into it`);
  }
  if (!wanted.length) checkWidth(names.length, task);
  const candidates = names.map((_, k) => k).filter((k) => !positions.includes(k));
  if (candidates.length === 0) throw new Refused("this table has no column for the class: add one, called class");
  const usual = candidates.find((k) => USUAL.test(names[k]!));
  return { names, candidates, label: usual ?? (candidates.length === 1 ? candidates[0]! : null) };
}

/** The columns of a table without a header: as many as the federation takes, and the class, which is usually the last. */
function ofTask({ input }: Task): TableColumns {
  if (input.columns) {
    throw new Refused(`this federation takes columns by their names: write them into the first line of the table. They are ${listed(input.columns.map(({ name }) => name))}, and the class`);
  }
  const width = valuesOf(input);
  const names = Array.from({ length: width + 1 }, (_, k) => `column ${k + 1}`);
  return { names, candidates: names.map((_, k) => k), label: width };
}

/** bytes of all records */
const LARGEST_MEMORY = 2 ** 30;

/** Records that a page takes at most: the first ones, whatever is in them. The task alone says how many. */
export const mostRecords = ({ input }: Task): number => Math.max(1, Math.floor(LARGEST_MEMORY / (4 * valuesOf(input))));

/** A note for the person about records beyond those that a page takes. */
export function beyondWords(beyond: number, most: number): string[] {
  return beyond ? [`This page takes the first ${most.toLocaleString("en")} examples; ${beyond.toLocaleString("en")} after them are left out.`] : [];
}

const valuesOf = ({ shape }: Task["input"]): number => shape.reduce((product, side) => product * side, 1);

function checkWidth(found: number, { input }: Task): void {
  const width = valuesOf(input);
  if (found !== width + 1) throw new Refused(`the first line of this table has ${found} columns; this federation takes ${width} numbers and a class, ${width + 1} in all`);
}

/** The names in a first line, and what stands between them: the sign that it has most of. */
function namesIn(first: string): { names: string[]; separator: Separator } {
  if (/[\ufffd\0]/.test(first)) throw new Refused("this is not a table of text: save it as CSV in UTF-8 and choose it again");
  const counts = SEPARATORS.map((mark) => first.split(mark).length);
  const separator = SEPARATORS[counts.indexOf(Math.max(...counts))]!;
  const names = cellsOf(first, separator).map((name) => name.trim());
  const numbers = names.filter(isNumber).length;
  if (2 * numbers < names.length || names.some((name) => USUAL.test(name))) return { names, separator };
  throw new Refused(
    "the first line of this table holds numbers where names of columns belong: write the names into it, or say that it is an example already",
  );
}

/** Where a column stands: by its name, else by its name in other capitals; -1 where it is not there. */
function columnOf(header: string[], name: string): number {
  const lower = (text: string) => text.trim().toLowerCase();
  const fits = [(cell: string) => cell === name.trim(), (cell: string) => lower(cell) === lower(name)];
  for (const fit of fits) {
    const found = header.flatMap((cell, k) => (fit(cell) ? [k] : []));
    if (found.length > 1) throw new Refused(`two columns of this table are called "${header[found[0]!]}": rename or remove one of them`);
    if (found.length === 1) return found[0]!;
  }
  return -1;
}

/** Reads one line; why it does not fit, or null. */
function readLine(cells: string[], { positions, label, names }: Columns, task: Task, into: Float32Array, setLabel: (k: number) => void): string | null {
  if (cells.length !== names.length) return ` has ${cells.length} columns, not ${names.length}`;
  const largest = task.input.kind === "image" ? largestOf(task) : Infinity;
  for (const [k, column] of positions.entries()) {
    const [cell, name] = [cells[column]!, names[column]!];
    if (!isNumber(cell)) return `, ${name}: "${cell.slice(0, 30)}" is not a number`;
    const value = Math.fround(Number(cell));
    if (!Number.isFinite(value)) return `, ${name}: ${cell.trim().slice(0, 30)} is too large; numbers go up to 3.4e38`;
    if (task.input.kind === "image" && (value < 0 || value > largest)) return `, ${name}: ${cell} is no brightness; they go from 0 to ${largest} here`;
    into[k] = value;
  }
  const k = classOf(cells[label]!, task.classes);
  if (k === null) return `: the class "${cells[label]!.slice(0, 30)}" is none of ${listed(task.classes)}`;
  setLabel(k);
  return null;
}

/** Rising numbers, those that follow each other together: 3, 5-9. */
function ranges(numbers: readonly number[]): string {
  const found: [number, number][] = [];
  for (const number of numbers) {
    const last = found.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  const words = found.slice(0, MOST_RANGES).map(([first, last]) => (first === last ? String(first) : `${first}-${last}`));
  return words.join(", ") + (found.length > MOST_RANGES ? ", .." : "");
}

/** The brightest value of a pixel. */
export function largestOf({ input }: Task): number {
  return input.largest ?? 255;
}

/** The class by its name, else by its number from 0 on. */
export function classOf(given: string, classes: readonly string[]): number | null {
  const named = classes.findIndex((name) => name.toLowerCase() === given.trim().toLowerCase());
  if (named >= 0) return named;
  const number = isNumber(given) ? Number(given) : NaN;
  const byName = classes.findIndex((name) => isNumber(name) && Number(name) === number);
  if (byName >= 0) return byName;
  return Number.isInteger(number) && number >= 0 && number < classes.length && !classes.every(isNumber) ? number : null;
}

function listed(classes: readonly string[]): string {
  return classes.length <= 12 ? classes.join(", ") : `${classes.slice(0, 10).join(", ")}, .. (${classes.length} classes)`;
}

function isNumber(cell: string): boolean {
  return /^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$/.test(cell);
}

/** Lines that are not empty, with their numbers. */
function linesOf(text: string): { text: string; line: number }[] {
  return text
    .replace(/^\ufeff/, "")
    .split(/\r\n|\n|\r/)
    .map((own, i) => ({ text: own, line: i + 1 }))
    .filter(({ text: own }) => own.trim() !== "");
}

function cellsOf(line: string, mark: string): string[] {
  if (!line.includes('"')) return line.split(mark);
  const cells: string[] = [];
  let [cell, quoted] = ["", false];
  for (let i = 0; i < line.length; i += 1) {
    const c = line[i]!;
    if (c === '"' && quoted && line[i + 1] === '"') {
      cell += '"';
      i += 1;
    } else if (c === '"') quoted = !quoted;
    else if (c === mark && !quoted) {
      cells.push(cell);
      cell = "";
    } else cell += c;
  }
  return [...cells, cell];
}
