/**
 * The coordinator's signature (docs/wire.md, Signed messages): every step's message comes in an envelope, and nothing in it
 * counts before its signature is checked.
 */
import { joined, length, pack, unpack } from "./codec.ts";
import { Refused } from "./refusal.ts";

const ROTATION_VERSION = 1;
const FIELDS = 116;
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
  signature: Uint8Array<ArrayBuffer>;
}

/** "SC" | version u8 | 0 u8 | round u32 | plan 16 | terms 32 | signature 64 | blobs: name, clients | message */
export function readEnvelope(bytes: Uint8Array<ArrayBuffer>): Envelope {
  const { kind, fields, blobs, rest } = unpack("signed message", "SC", bytes, FIELDS, 2);
  const [name, clients] = blobs as [Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>];
  const whole = kind === 0 && name.length > 0 && name.length <= LONGEST_NAME && clients.length <= MOST_CLIENTS / 8;
  if (!whole || !name.every((letter) => letter < 0x80)) throw new Refused("a signed message is damaged");
  const part = (start: number, end: number) => new Uint8Array(fields.buffer.slice(start, end) as ArrayBuffer);
  return {
    federation: String.fromCharCode(...name), round: fields.getUint32(0, true), plan: part(4, 20), terms: part(20, 52),
    signature: part(52, FIELDS), clients, message: rest,
  };
}

export function isFor({ clients }: Envelope, client: number): boolean {
  return (((clients[Math.floor(client / 8)] ?? 0) >> client % 8) & 1) === 1;
}

/** Whether the holder of a public key signed the message, for this step. */
export async function isSigned(envelope: Envelope, step: string, key: Uint8Array<ArrayBuffer>): Promise<boolean> {
  const { federation, round, plan, terms, clients, message, signature } = envelope;
  const name = ascii.encode(step);
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", message));
  const fields = new Uint8Array(FIELDS); // without the signature
  new DataView(fields.buffer).setUint32(0, round, true);
  fields.set(plan, 4);
  fields.set(terms, 20);
  const text = joined(ascii.encode("sordino step 3\0"), length(name), name, pack("SC", 0, fields, [ascii.encode(federation), clients], digest));
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
