/** Tables of numbers: one record a line, its class in one of the columns. */
import { Refused } from "../wire/refusal.ts";
import type { Task } from "../wire/task.ts";
import { type Block, Blocks } from "./blocks.ts";
import { LONGEST_LINE, type Line } from "./lines.ts";

export interface RawRecords {
  blocks: Block[];
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
type Separator = (typeof SEPARATORS)[number];

/** What the first line of a table holds: the names of columns, or an example already, with such a sign between its cells. */
export type FirstLine = "names" | Separator;

/** What a person says of a table. No record says any of it: one that did would decide how all others are read. */
export interface Reading {
  /** where the class stands in a line, from 0 on; left out where the header tells */
  label?: number;
  /** may be left out where a federation takes columns by their names */
  first?: FirstLine;
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
export async function readTable(lines: AsyncIterable<Line[]>, task: Task, reading: Reading): Promise<RawRecords> {
  const first = firstLine(task, reading.first);
  let columns = first === "names" ? null : columnsOf(ofTask(task), first, task, reading.label);
  const values = new Float32Array(valuesOf(task));
  const blocks = new Blocks(values.length);
  let [all, left, label] = [0, 0, 0];
  const problems: string[] = [];
  const others: [number, number][] = [];
  for await (const some of lines) {
    for (const { number, text } of some) {
      if (columns === null) {
        const { names, separator } = namesIn(text);
        columns = columnsOf(ofHeader(names, task), separator, task, reading.label);
        continue;
      }
      all += 1;
      const problem = readLine(text, columns, task, values, (k) => (label = k));
      if (problem === null) {
        blocks.add(values, label);
        continue;
      }
      left += 1;
      if (problems.length < MOST_PROBLEMS) problems.push(`line ${number}${problem}`);
      else extend(others, number);
    }
  }
  if (columns === null) throw new Refused(EMPTY);
  const { names, positions, notes } = columns;
  const why = `${problems.join("; ")}${others.length ? `; and line${left > MOST_PROBLEMS + 1 ? "s" : ""} ${rangeWords(others)}` : ""}`;
  if (left) notes.push(`${left} of ${all} lines cannot be used and are left out: ${why}.`);
  return { blocks: blocks.end(), notes, matched: { columns: positions.map((k) => names[k]!), label: names[columns.label]! } };
}

/** The columns of a table, for a person to say which of them is the class. */
export async function tableColumns(lines: AsyncIterable<Line[]>, task: Task, given?: FirstLine): Promise<TableColumns> {
  if (firstLine(task, given) !== "names") return ofTask(task);
  for await (const [line] of lines) if (line) return ofHeader(namesIn(line.text).names, task);
  throw new Refused(EMPTY);
}

const EMPTY = "this table is empty: choose a file with one record a line";

/** What the first line holds: names, where a federation takes columns by theirs; else it is the person who says so. */
function firstLine({ input }: Task, given?: FirstLine): FirstLine {
  const first = given ?? (input.columns ? "names" : null);
  if (first === null) throw new Refused("say whether the first line of this table holds the names of columns or an example");
  return first;
}

function columnsOf({ names, candidates, label: known }: TableColumns, separator: Separator, task: Task, said?: number): Columns {
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
function ofTask(task: Task): TableColumns {
  const { input } = task;
  if (input.columns) {
    throw new Refused(`this federation takes columns by their names: write them into the first line of the table. They are ${listed(input.columns.map(({ name }) => name))}, and the class`);
  }
  const width = valuesOf(task);
  const names = Array.from({ length: width + 1 }, (_, k) => `column ${k + 1}`);
  return { names, candidates: names.map((_, k) => k), label: width };
}

/** Values of a record. */
export const valuesOf = ({ input }: Task): number => input.shape.reduce((product, side) => product * side, 1);

function checkWidth(found: number, task: Task): void {
  const width = valuesOf(task);
  if (found !== width + 1) throw new Refused(`the first line of this table has ${found} columns; this federation takes ${width} numbers and a class, ${width + 1} in all`);
}

/** The names in a first line, and what stands between them: the sign that it has most of. */
function namesIn(first: string | null): { names: string[]; separator: Separator } {
  if (first === null) throw new Refused(`the first line of this table${TOO_LONG}: write the names of its columns into it, and each record into a line of its own`);
  if (/[\ufffd\0]/.test(first)) throw new Refused("this is not a table of text: save it as CSV in UTF-8 and choose it again");
  const counts = SEPARATORS.map((mark) => first.split(mark).length);
  const separator = SEPARATORS[counts.indexOf(Math.max(...counts))]!;
  return { names: cellsOf(first, separator).map((name) => name.trim()), separator };
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

const TOO_LONG = ` is longer than ${LONGEST_LINE.toLocaleString("en")} characters`;

/** Reads one line; why it does not fit, or null. */
function readLine(line: string | null, { positions, label, names, separator }: Columns, task: Task, into: Float32Array, setLabel: (k: number) => void): string | null {
  if (line === null) return TOO_LONG;
  const cells = cellsOf(line, separator, names.length + 1);
  if (cells.length > names.length) return ` has more than ${names.length} columns`;
  if (cells.length < names.length) return ` has ${cells.length} columns, not ${names.length}`;
  const largest = task.input.kind === "image" ? largestOf(task) : Infinity;
  for (const [k, column] of positions.entries()) {
    const [cell, name] = [cells[column]!, names[column]!];
    if (!isNumber(cell)) return `, ${name}: "${cell.slice(0, 30)}" is not a number`;
    const value = Math.fround(Number(cell));
    if (!Number.isFinite(value)) return `, ${name}: ${cell.trim().slice(0, 30)} is too large; numbers go up to 3.4e38`;
    if (task.input.kind === "image" && (value < 0 || value > largest)) return `, ${name}: ${cell.trim().slice(0, 30)} is no brightness; they go from 0 to ${largest} here`;
    into[k] = value;
  }
  const k = classOf(cells[label]!, task.classes);
  if (k === null) return `: the class "${cells[label]!.slice(0, 30)}" is none of ${listed(task.classes)}`;
  setLabel(k);
  return null;
}

/** Adds the next number to rising ranges: one longer, or one more, up to one that is not shown. */
function extend(ranges: [number, number][], number: number): void {
  const last = ranges.at(-1);
  if (last && last[1] === number - 1) last[1] = number;
  else if (ranges.length <= MOST_RANGES) ranges.push([number, number]);
}

function rangeWords(ranges: readonly [number, number][]): string {
  const words = ranges.slice(0, MOST_RANGES).map(([first, last]) => (first === last ? String(first) : `${first}-${last}`));
  return words.join(", ") + (ranges.length > MOST_RANGES ? ", .." : "");
}

/** The brightest value of a pixel. */
export function largestOf({ input }: Task): number {
  return input.largest ?? 255;
}

/** The class by its name, else by its number from 0 on. */
export function classOf(given: string, classes: readonly string[]): number | null {
  const own = given.trim().toLowerCase();
  const named = classes.findIndex((name) => name.toLowerCase() === own);
  if (named >= 0) return named;
  const number = isNumber(given) ? Number(given) : NaN;
  const byName = classes.findIndex((name) => isNumber(name) && Number(name) === number);
  if (byName >= 0) return byName;
  return Number.isInteger(number) && number >= 0 && number < classes.length && !classes.every(isNumber) ? number : null;
}

function listed(classes: readonly string[]): string {
  return classes.length <= 12 ? classes.join(", ") : `${classes.slice(0, 10).join(", ")}, .. (${classes.length} classes)`;
}

/** In time that grows with the cell alone: no two parts of the pattern fit the same digits. */
function isNumber(cell: string): boolean {
  return /^\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*$/.test(cell);
}

/** The first cells of a line. */
function cellsOf(line: string, mark: string, most = 2 ** 32 - 1): string[] {
  if (!line.includes('"')) return line.split(mark, most);
  const cells: string[] = [];
  let [first, quoted] = [0, false];
  for (let i = 0; i <= line.length && cells.length < most; i += 1) {
    if (line[i] === '"') quoted = !quoted;
    else if (i === line.length || (line[i] === mark && !quoted)) {
      cells.push(unquoted(line.slice(first, i)));
      first = i + 1;
    }
  }
  return cells;
}

/** A cell without its quotation marks; two of them within others are one that belongs to it. */
function unquoted(cell: string): string {
  const parts = cell.split('"');
  return parts.map((part, k) => (part === "" && k % 2 === 0 && k > 0 && k < parts.length - 1 ? '"' : part)).join("");
}
