/** The binary messages of docs/web-protocol.md: requests and responses, plans and answers. Little-endian throughout. */
import { pack, unpack } from "./codec.ts";
import { Refused } from "./refusal.ts";

const text = new TextDecoder("utf-8", { fatal: true });

export const WHAT = { join: 2, step: 3, receipt: 4 } as const;

export interface Request {
  what: number;
  step: string;
  payload: Uint8Array<ArrayBuffer>;
}

/** "SQ" | version u8 | what u8 | blob: step | payload */
export function readRequest(body: Uint8Array<ArrayBuffer>): Request {
  const { kind, blobs, rest } = unpack("request", "SQ", body, 0, 1);
  if (!Object.values(WHAT).includes(kind as 2 | 3 | 4)) throw new Refused("a request of an unknown kind");
  return { what: kind, step: decoded(blobs[0]!), payload: rest };
}

/** "SA" | version u8 | fine u8 | blobs: reason, receipt | payload */
export function writeResponse(response: { fine: boolean; reason?: string; payload?: Uint8Array }): Uint8Array<ArrayBuffer> {
  const none = new Uint8Array();
  const reason = new TextEncoder().encode(response.reason ?? "");
  return pack("SA", response.fine ? 1 : 0, none, [reason, none], response.payload ?? none);
}

export interface Plan {
  federation: string;
  round: number;
  settings: Record<string, unknown>;
  arrays: Map<string, { shape: number[]; values: Float32Array }>;
  /** SHA-256 of the bytes, of which answers carry the first half */
  hash: Uint8Array<ArrayBuffer>;
}

/** "SP" | version u8 | 0 u8 | blob: header | arrays. Only the canonical form is read. */
export async function readPlan(message: Uint8Array<ArrayBuffer>): Promise<Plan> {
  const { kind, blobs, rest } = unpack("plan", "SP", message, 0, 1);
  const source = decoded(blobs[0]!);
  const header = parsed(source);
  if (kind !== 0 || !isHeader(header) || canonical(header) !== source) throw new Refused("a plan is not in its canonical form");
  const view = new DataView(rest.buffer);
  const arrays: Plan["arrays"] = new Map();
  let at = 0;
  for (const [name, shape] of Object.entries(header.arrays)) {
    const size = shape.reduce((product, side) => product * side, 1);
    if (at + 4 * size > rest.length) throw new Refused("a plan is shorter than it announces");
    const values = new Float32Array(size);
    for (let i = 0; i < size; i += 1) values[i] = view.getFloat32(at + 4 * i, true);
    arrays.set(name, { shape, values });
    at += 4 * size;
  }
  if (at !== rest.length) throw new Refused("a plan is longer than it announces");
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", message));
  return { federation: header.federation, round: header.round, settings: header.settings, arrays, hash };
}

interface Header {
  arrays: Record<string, number[]>;
  federation: string;
  round: number;
  settings: Record<string, unknown>;
}

function isHeader(value: unknown): value is Header {
  const header = value as Header;
  const whole = (x: unknown) => Number.isSafeInteger(x) && (x as number) >= 0;
  return (
    isObject(header) && typeof header.federation === "string" && isObject(header.settings) && isObject(header.arrays) &&
    whole(header.round) && header.round < 2 ** 32 &&
    Object.values(header.arrays).every((shape) => Array.isArray(shape) && shape.every(whole))
  );
}

/** JSON with sorted keys, no spaces and only ASCII, as Python's `json.dumps` writes it. */
export function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (isObject(value)) {
    const keys = Object.keys(value).sort(byCodePoint);
    return `{${keys.map((key) => `${canonical(key)}:${canonical(value[key])}`).join(",")}}`;
  }
  const plain = JSON.stringify(value);
  return plain.replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function byCodePoint(a: string, b: string): number {
  const [x, y] = [[...a], [...b]];
  for (let i = 0; i < Math.min(x.length, y.length); i += 1) {
    const difference = x[i]!.codePointAt(0)! - y[i]!.codePointAt(0)!;
    if (difference) return difference;
  }
  return x.length - y.length;
}

export const KIND = { report: 1, declined: 2 } as const;
export const ANSWER_BYTES = 24;

/** "SR" | version u8 | kind u8 | round u32 | first half of the plan's hash | body; no body: the client declines. */
export function writeAnswer(plan: { round: number; hash: Uint8Array }, body: Uint8Array | null): Uint8Array<ArrayBuffer> {
  const fields = new Uint8Array(ANSWER_BYTES - 4);
  new DataView(fields.buffer).setUint32(0, plan.round, true);
  fields.set(plan.hash.subarray(0, 16), 4);
  return pack("SR", body === null ? KIND.declined : KIND.report, fields, [], body ?? new Uint8Array());
}

/** Whether an answer is a report, and does not say that there is none. */
export const isReport = (answer: Uint8Array): boolean => answer[3] === KIND.report;

export const hex = (bytes: Uint8Array): string => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function decoded(bytes: Uint8Array): string {
  try {
    return text.decode(bytes);
  } catch {
    throw new Refused("a text in a message is not UTF-8");
  }
}

function parsed(source: string): unknown {
  try {
    return JSON.parse(source);
  } catch {
    throw new Refused("a plan's header is not JSON");
  }
}
