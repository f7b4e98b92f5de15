/** Exact sums become reports here: discrete Gaussian noise on every value, modulo a power of two (docs/bits.md). */
import { discreteGaussian } from "../bits/discrete.ts";
import { packIntegers, unpackIntegers } from "../bits/encoding.ts";
import type { Words } from "../bits/keystream.ts";
import { wholeNoise } from "../learning/draws.ts";
import { Refused } from "../wire/refusal.ts";
import type { Stage } from "../wire/task.ts";

/** sums beyond it are none that a page makes */
const LARGEST_SUM = 2 ** 51;

/** The body of a report. Without sums, or with what are none, it is that of no records: to tell them apart would tell of the records. */
export async function noisySums({ values, noise: bits, modulus }: Stage, sums: Float64Array | null, words: Words): Promise<Uint8Array<ArrayBuffer>> {
  if (sums !== null && sums.length !== values) throw new Refused(`training gave ${sums.length} sums where ${values} were asked for`);
  const exact = sums?.every((sum) => Number.isInteger(sum) && Math.abs(sum) <= LARGEST_SUM) ? sums : new Float64Array(values);
  const drawn = await wholeNoise(words, 0, values, discreteGaussian(bits));
  return packIntegers(exact.map((sum, i) => wrapped(sum + drawn[i]!, modulus)), -(2 ** (modulus - 1)), 2 ** (modulus - 1) - 1);
}

/** The sums that the server reads in a report. */
export function readSums({ modulus }: Stage, body: Uint8Array): Float64Array {
  return unpackIntegers(body, -(2 ** (modulus - 1)), 2 ** (modulus - 1) - 1);
}

/** A whole number modulo 2^bits, around zero. */
export function wrapped(value: number, bits: number): number {
  const [whole, half] = [2 ** bits, 2 ** (bits - 1)];
  return ((((value + half) % whole) + whole) % whole) - half;
}
