/** The binary messages of docs/web-protocol.md: requests and responses, plans and answers. Little-endian throughout. */
import { Refused } from "./refusal.ts";

const VERSION = 1;
const text = new TextDecoder("utf-8", { fatal: true });

export const WHAT = { join: 2, step: 3, receipt: 4 } as const;

export interface Request {
  what: number;
  step: string;
  payload: Uint8Array<ArrayBuffer>;
}

/** "SQ" | version u8 | what u8 | length of the step u8 | step | payload */
export function readRequest(body: Uint8Array<ArrayBuffer>): Request {
  if (body.length < 5) throw new Refused("a request was cut off");
  checkHead("request", body, "SQ");
  const [, , , what, length] = body;
  const start = 5 + length!;
  if (!Object.values(WHAT).includes(what as 2 | 3 | 4) || start > body.length) {
    throw new Refused("a request of an unknown kind, or cut off");
  }
  return { what: what!, step: decoded(body.subarray(5, start)), payload: body.slice(start) };
}

/** "SA" | version u8 | fine u8 | length of the reason u16 | of the receipt u16 | reason | receipt | payload */
export function writeResponse(response: { fine: boolean; reason?: string; payload?: Uint8Array }): Uint8Array<ArrayBuffer> {
  const reason = new TextEncoder().encode(response.reason ?? "");
  const payload = response.payload ?? new Uint8Array();
  const body = new Uint8Array(8 + reason.length + payload.length);
  const view = new DataView(body.buffer);
  body.set([0x53, 0x41, VERSION, response.fine ? 1 : 0]);
  view.setUint16(4, reason.length, true);
  view.setUint16(6, 0, true);
  body.set(reason, 8);
  body.set(payload, 8 + reason.length);
  return body;
}

export interface Plan {
  federation: string;
  round: number;
  settings: Record<string, unknown>;
  arrays: Map<string, { shape: number[]; values: Float32Array }>;
  /** SHA-256 of the bytes, of which answers carry the first half */
  hash: Uint8Array<ArrayBuffer>;
}

/** "SP" | version u8 | 0 u8 | length of the header u32 | header | arrays. Only the canonical form is read. */
export async function readPlan(message: Uint8Array<ArrayBuffer>): Promise<Plan> {
  if (message.length < 8) throw new Refused("a plan was cut off");
  checkHead("plan", message, "SP");
  const view = new DataView(message.buffer, message.byteOffset, message.byteLength);
  const start = 8 + view.getUint32(4, true);
  if (message[3] !== 0 || start > message.length) throw new Refused("a plan is damaged or was cut off");
  const source = decoded(message.subarray(8, start));
  const header = parsed(source);
  if (!isHeader(header) || canonical(header) !== source) throw new Refused("a plan is not in its canonical form");
  const arrays: Plan["arrays"] = new Map();
  let at = start;
  for (const [name, shape] of Object.entries(header.arrays)) {
    const size = shape.reduce((product, side) => product * side, 1);
    if (at + 4 * size > message.length) throw new Refused("a plan is shorter than it announces");
    const values = new Float32Array(size);
    for (let i = 0; i < size; i += 1) values[i] = view.getFloat32(at + 4 * i, true);
    arrays.set(name, { shape, values });
    at += 4 * size;
  }
  if (at !== message.length) throw new Refused("a plan is longer than it announces");
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
  const answer = new Uint8Array(ANSWER_BYTES + (body?.length ?? 0));
  answer.set([0x53, 0x52, VERSION, body === null ? KIND.declined : KIND.report]);
  new DataView(answer.buffer).setUint32(4, plan.round, true);
  answer.set(plan.hash.subarray(0, 16), 8);
  if (body !== null) answer.set(body, ANSWER_BYTES);
  return answer;
}

export const hex = (bytes: Uint8Array): string => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function checkHead(what: string, bytes: Uint8Array, magic: string): void {
  if (bytes[0] !== magic.charCodeAt(0) || bytes[1] !== magic.charCodeAt(1)) {
    throw new Refused(`this is not a ${what} of a federation`);
  }
  if (bytes[2] !== VERSION) {
    throw new Refused(`the server speaks version ${bytes[2]} of the protocol, this page version ${VERSION}: reload the page`);
  }
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
