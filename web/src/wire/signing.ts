/**
 * The coordinator's signature (docs/wire.md, Signed messages): every step's message comes in an envelope, and nothing in it
 * counts before its signature is checked.
 */
import { Refused } from "./refusal.ts";

const VERSION = 2;
const ROTATION_VERSION = 1;
const HEAD = 61;
const SIGNATURE = 64;
const KEY = 32;
const LONGEST_NAME = 100;
const MOST_CLIENTS = 2 ** 24;
const MOST_ROTATIONS = 100;
const ascii = new TextEncoder();

export interface Envelope {
  federation: string;
  round: number;
  /** first half of the SHA-256 of the plan that this step belongs to */
  plan: Uint8Array<ArrayBuffer>;
  /** SHA-256 of the terms that all members of the federation agreed to */
  terms: Uint8Array<ArrayBuffer>;
  /** a bit for each client that is asked */
  clients: Uint8Array<ArrayBuffer>;
  message: Uint8Array<ArrayBuffer>;
  head: Uint8Array<ArrayBuffer>;
  signature: Uint8Array<ArrayBuffer>;
}

/**
 * "SC" | version u8 | 0 u8 | round u32 | plan 16 | terms 32 | length of the name u8 | of the clients u32 | signature 64 | name |
 * clients | message
 */
export function readEnvelope(bytes: Uint8Array<ArrayBuffer>): Envelope {
  if (bytes.length < 4 || bytes[0] !== 0x53 || bytes[1] !== 0x43) throw new Refused("a message came without a signature");
  if (bytes[2] !== VERSION || bytes[3] !== 0) throw new Refused("the server signs in another way than this page knows: reload the page");
  if (bytes.length < HEAD + SIGNATURE) throw new Refused("a signed message was cut off");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const start = HEAD + SIGNATURE;
  const middle = start + bytes[56]!;
  const clients = view.getUint32(57, true);
  const end = middle + clients;
  const name = bytes.subarray(start, middle);
  const whole = middle > start && middle - start <= LONGEST_NAME && clients <= MOST_CLIENTS / 8 && end <= bytes.length;
  if (!whole || !name.every((letter) => letter < 0x80)) throw new Refused("a signed message was cut off, or is damaged");
  return {
    federation: String.fromCharCode(...name), round: view.getUint32(4, true), plan: bytes.slice(8, 24), terms: bytes.slice(24, 56),
    clients: bytes.slice(middle, end), message: bytes.slice(end), head: bytes.slice(0, HEAD), signature: bytes.slice(HEAD, start),
  };
}

export function isFor({ clients }: Envelope, client: number): boolean {
  return (((clients[Math.floor(client / 8)] ?? 0) >> client % 8) & 1) === 1;
}

/** Whether the holder of a public key signed the message, for this step. */
export async function isSigned(envelope: Envelope, step: string, key: Uint8Array<ArrayBuffer>): Promise<boolean> {
  const { head, federation, clients, message, signature } = envelope;
  const name = ascii.encode(step);
  if (name.length > 255) return false;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", message));
  const text = joined(ascii.encode("sordino step 2\0"), Uint8Array.of(name.length), name, head, ascii.encode(federation), clients, digest);
  return verified(key, signature, text);
}

/** The public key that signs now: the first one, or where each rotation hands over to, which the key before must have signed. */
export async function keyAfter(first: string, rotations: readonly string[]): Promise<Uint8Array<ArrayBuffer>> {
  let key = fromHex(first);
  if (key?.length !== KEY || rotations.length > MOST_ROTATIONS) throw new Refused("the federation does not say by which key its plans are signed");
  for (const text of rotations) {
    const rotation = fromHex(text);
    const next = rotation?.slice(4, 4 + KEY);
    const whole = rotation?.length === 4 + KEY + SIGNATURE && [0x53, 0x4b, ROTATION_VERSION, 0].every((byte, i) => rotation[i] === byte);
    const about = joined(ascii.encode("sordino key 1\0"), key, next ?? new Uint8Array());
    if (!whole || !(await verified(key, rotation.slice(4 + KEY), about))) {
      throw new Refused("the server names another key for its plans, and the key before did not sign that: nothing is answered");
    }
    key = next!;
  }
  return key;
}

async function verified(key: Uint8Array<ArrayBuffer>, signature: Uint8Array<ArrayBuffer>, text: Uint8Array<ArrayBuffer>): Promise<boolean> {
  return crypto.subtle.verify({ name: "Ed25519" }, await imported(key), signature, text);
}

async function imported(key: Uint8Array<ArrayBuffer>): Promise<CryptoKey> {
  try {
    return await crypto.subtle.importKey("raw", key, { name: "Ed25519" }, false, ["verify"]);
  } catch {
    throw new Refused(
      "this browser cannot check the coordinator's signature (Ed25519), so nothing can be answered: use a newer one, such as " +
        "Chrome 137, Firefox 129 or Safari 17",
    );
  }
}

/** Refuses a browser that cannot check signatures, and a key that is none. */
export async function checkKey(first: string): Promise<void> {
  await imported(await keyAfter(first, []));
}

function fromHex(text: unknown): Uint8Array<ArrayBuffer> | null {
  if (typeof text !== "string" || !/^([0-9a-f]{2})*$/.test(text)) return null;
  return Uint8Array.from({ length: text.length / 2 }, (_, i) => Number.parseInt(text.slice(2 * i, 2 * i + 2), 16));
}

function joined(...parts: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
