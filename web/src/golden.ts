/** What Python wrote down for tests to compare with (tests/golden/make_web.py). */
import { readFileSync } from "node:fs";
import { Keystream } from "./bits/keystream.ts";

const read = (name: string) => JSON.parse(readFileSync(new URL(`../../tests/golden/${name}`, import.meta.url), "utf8"));

export const golden = read("web.json");

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
