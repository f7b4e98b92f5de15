/** What Python wrote down for tests to compare with (tests/golden/make_web.py). */
import { type KeyObject, createHash, createPrivateKey, createPublicKey, sign } from "node:crypto";
import { readFileSync } from "node:fs";
import { Keystream } from "./bits/keystream.ts";

const read = (name: string) => JSON.parse(readFileSync(new URL(`../../tests/golden/${name}`, import.meta.url), "utf8"));

export const golden = read("web.json");

/** Features of images, from tests/golden/make_features.py. */
export const features = read("features.json");

/** Real tasks, by the name of their federation. */
export const tasks: Record<string, any> = Object.fromEntries(read("web_tasks.json").map((task: any) => [task.federation, task]));

export const fromHex = (text: string): Uint8Array<ArrayBuffer> => Uint8Array.from(Buffer.from(text, "hex"));
export const toHex = (bytes: Uint8Array): string => Buffer.from(bytes).toString("hex");
export const stream = (): Promise<Keystream> => Keystream.withKey(fromHex(golden.key_hex));

const INITIAL = 5; // the purpose under which both sides draw weights and records for tests
export const TENSOR = { weights: 0, records: 1, labels: 2, values: 3 } as const;

export async function words(tensor: number, count: number): Promise<Uint32Array> {
  return (await stream()).words(INITIAL, tensor, 0, count);
}

/** (word >> 8 - 2^23) * scale * 2^-23. */
export async function numbers(tensor: number, count: number, scale: number): Promise<Float32Array> {
  return Float32Array.from(await words(tensor, count), (word) => ((word >>> 8) - 2 ** 23) * scale * 2 ** -23);
}

// --- a coordinator's signatures

/** A private key from its 32 bytes. */
export function signingKey(seed: string): KeyObject {
  return createPrivateKey({ key: Buffer.from(`302e020100300506032b657004220420${seed}`, "hex"), format: "der", type: "pkcs8" });
}

/** The key that signs in all golden tasks. */
export const coordinator = signingKey(golden.key_hex);

export const publicKey = (key: KeyObject): string => createPublicKey(key).export({ format: "der", type: "spki" }).subarray(-32).toString("hex");

export interface Signing {
  federation: string;
  round: number;
  /** the digest in the federation's task */
  terms: string;
  step?: string;
  clients?: readonly number[];
  key?: KeyObject;
}

/** A plan in its envelope, as a coordinator sends it. */
export function signed(plan: Uint8Array, { federation, round, terms, step = "report", clients = Array.from({ length: 64 }, (_, i) => i), key = coordinator }: Signing): Uint8Array<ArrayBuffer> {
  const digest = createHash("sha256").update(plan).digest();
  const asked = Buffer.alloc(Math.floor(Math.max(...clients) / 8) + 1);
  for (const client of clients) asked[client >> 3]! |= 1 << (client & 7);
  const blob = (raw: Buffer) => Buffer.concat([Buffer.from(Uint32Array.of(raw.length).buffer), raw]);
  const envelope = (signature: Buffer, message: Uint8Array) => {
    const head = Buffer.alloc(56);
    head.write("SC\x02\0", "latin1");
    head.writeUInt32LE(round, 4);
    digest.copy(head, 8, 0, 16);
    head.write(terms, 24, "hex");
    return Buffer.concat([head, signature, blob(Buffer.from(federation)), blob(asked), message]);
  };
  const text = Buffer.concat([Buffer.from("sordino step 3\0"), blob(Buffer.from(step)), envelope(Buffer.alloc(64), digest)]);
  return Uint8Array.from(envelope(sign(null, text, key), plan));
}

/** One key hands over to another. */
export function rotation(from: KeyObject, to: KeyObject, by = from): string {
  const about = Buffer.concat([Buffer.from("sordino key 1\0"), Buffer.from(publicKey(from), "hex"), Buffer.from(publicKey(to), "hex")]);
  return `534b0100${publicKey(to)}${sign(null, about, by).toString("hex")}`;
}
