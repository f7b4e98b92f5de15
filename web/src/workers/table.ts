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
/** what the column of the class is usually called */
const USUAL = /^(class|label|target|y)$/i;

/** Where the values of a record stand in a line. */
interface Columns {
  /** of each value, in the model's order */
  positions: number[];
  label: number;
  /** cells of a line */
  cells: number;
  /** what each cell is called */
  names: string[];
  notes: string[];
}

/** Reads a table; every line that cannot be read is named, and then nothing is taken. */
export function readTable(text: string, task: Task, labelColumn?: string): RawRecords {
  const lines = rowsOf(text.replace(/^\ufeff/, ""));
  if (lines.length === 0) throw new Refused("this table is empty: choose a file with one record a line");
  const header = looksLikeHeader(lines[0]!) ? lines.shift()!.cells.map((name) => name.trim()) : null;
  if (lines.length === 0) throw new Refused("this table has a header and no records: choose a file with one record a line");
  const columns = task.input.columns
    ? byName(task, header, lines, labelColumn)
    : byPosition(task, header, lines[0]!.cells.length, labelColumn);
  const width = columns.positions.length;
  const x = new Float32Array(lines.length * width);
  const y = new Int32Array(lines.length);
  const problems: string[] = [];
  let bad = 0;
  lines.forEach(({ cells, line }, i) => {
    const problem = readLine(cells, line, columns, task, x.subarray(i * width, (i + 1) * width), (k) => (y[i] = k));
    if (problem === null) return;
    bad += 1;
    if (problems.length < MOST_PROBLEMS) problems.push(problem);
  });
  if (bad) {
    const more = bad > problems.length ? ` (and ${bad - problems.length} more lines)` : "";
    throw new Refused(`${problems.join("; ")}${more}. Correct these lines and choose the file again`);
  }
  const matched = { columns: columns.positions.map((k) => columns.names[k]!), label: columns.names[columns.label]! };
  return { x, y, notes: columns.notes, matched };
}

/** All columns but the class, in their order. */
function byPosition(task: Task, header: string[] | null, found: number, labelColumn?: string): Columns {
  const width = task.input.shape.reduce((product, side) => product * side, 1);
  const label = labelIndex(header, found, labelColumn);
  const positions = Array.from({ length: width }, (_, k) => (k < label ? k : k + 1));
  const names = Array.from({ length: width + 1 }, (_, k) => header?.[k] ?? `column ${k + 1}`);
  const notes = header ? [] : ["The first line was read as a record, since it has no words in it."];
  return { positions, label, cells: width + 1, names, notes };
}

/** The columns that the task names, wherever they stand; all others but the class are left out. */
function byName(task: Task, header: string[] | null, lines: readonly { cells: string[] }[], labelColumn?: string): Columns {
  const wanted = task.input.columns!.map(({ name }) => name);
  if (!header) {
    throw new Refused(`this table has no header: write the names of its columns into its first line. This federation takes ${listed(wanted)}, and the class`);
  }
  const positions = wanted.map((name) => columnOf(header, name));
  const missing = wanted.filter((_, k) => positions[k]! < 0);
  if (missing.length) throw new Refused(`this table lacks ${missing.length === 1 ? "the column" : "the columns"} ${listed(missing)}: add what is missing, in any place`);
  const others = header.map((_, k) => k).filter((k) => !positions.includes(k));
  if (others.length === 0) throw new Refused("this table has no column for the class: add one, called class");
  const label = labelColumn?.trim() ? labelIndex(header, header.length, labelColumn) : likelyLabel(others, header, lines, task.classes);
  if (positions.includes(label)) throw new Refused(`the column "${header[label]}" is one that the model learns from: name another for the class`);
  const extra = others.filter((k) => k !== label).map((k) => header[k]!);
  const notes = extra.length ? [`This federation does not use ${listed(extra)}: left out.`] : [];
  return { positions, label, cells: header.length, names: header, notes };
}

/** The column of the class where nobody names it: one with a usual name, else the only one that holds names of classes, else the last. */
function likelyLabel(others: number[], header: string[], lines: readonly { cells: string[] }[], classes: readonly string[]): number {
  const usual = others.find((k) => USUAL.test(header[k]!));
  if (usual !== undefined) return usual;
  const names = new Set(classes.map((name) => name.toLowerCase()));
  const fitting = others.filter((k) => lines.every(({ cells }) => names.has((cells[k] ?? "").trim().toLowerCase())));
  return fitting.length === 1 ? fitting[0]! : others.at(-1)!;
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

function readLine(
  cells: string[], line: number, columns: Columns, task: Task, into: Float32Array, setLabel: (k: number) => void,
): string | null {
  const { positions, label, names } = columns;
  if (cells.length !== columns.cells) {
    const takes = task.input.columns ? `its header has ${columns.cells}` : `this federation takes ${positions.length} numbers and a class, ${columns.cells} in all`;
    return `line ${line} has ${cells.length} columns; ${takes}`;
  }
  const largest = task.input.kind === "image" ? largestOf(task) : Infinity;
  for (const [k, column] of positions.entries()) {
    const [cell, name] = [cells[column]!, names[column]!];
    if (!isNumber(cell)) return `line ${line}, ${name}: "${cell.slice(0, 30)}" is not a number`;
    const value = Math.fround(Number(cell));
    if (!Number.isFinite(value)) return `line ${line}, ${name}: ${cell.trim().slice(0, 30)} is too large; numbers go up to 3.4e38`;
    if (task.input.kind === "image" && (value < 0 || value > largest)) {
      return `line ${line}, ${name}: ${cell} is no brightness; they go from 0 to ${largest} here`;
    }
    into[k] = value;
  }
  const k = classOf(cells[label]!, task.classes);
  if (k === null) return `line ${line}: the class "${cells[label]!.slice(0, 30)}" is none of ${listed(task.classes)}`;
  setLabel(k);
  return null;
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

/** A record has one word at most, its class; a header has words in most columns. */
function looksLikeHeader({ cells }: { cells: string[] }): boolean {
  return 2 * cells.filter((cell) => !isNumber(cell)).length > cells.length;
}

function labelIndex(header: string[] | null, columns: number, wanted?: string): number {
  if (wanted === undefined || wanted.trim() === "") {
    const usual = header?.findIndex((name) => USUAL.test(name)) ?? -1;
    return usual >= 0 ? usual : columns - 1;
  }
  const named = header?.findIndex((name) => name.trim().toLowerCase() === wanted.trim().toLowerCase()) ?? -1;
  if (named >= 0) return named;
  const number = Number(wanted);
  if (Number.isInteger(number) && number >= 1 && number <= columns) return number - 1;
  const known = header ? `the columns are ${listed(header)}` : `the table has no header: give a number from 1 to ${columns}`;
  throw new Refused(`there is no column "${wanted.slice(0, 40)}" for the class; ${known}`);
}

/** Lines with their cells; commas, semicolons or tabs, whichever the first line has most of. Quotes may hold any of them. */
function rowsOf(text: string): { cells: string[]; line: number }[] {
  const first = text.slice(0, text.search(/[\r\n]|$/));
  const counts = [",", ";", "\t"].map((mark) => first.split(mark).length);
  const mark = [",", ";", "\t"][counts.indexOf(Math.max(...counts))]!;
  const rows: { cells: string[]; line: number }[] = [];
  text.split(/\r\n|\n|\r/).forEach((line, i) => {
    if (line.trim() !== "") rows.push({ cells: cellsOf(line, mark), line: i + 1 });
  });
  return rows;
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
