/** Exact sums become reports here: discrete Gaussian noise on every value, modulo a power of two (docs/bits.md). */
import { discreteGaussian } from "../bits/discrete.ts";
import { packIntegers, unpackIntegers } from "../bits/encoding.ts";
import type { Words } from "../bits/keystream.ts";
import { wholeNoise } from "../learning/draws.ts";
import { wrapped } from "../learning/whole.ts";
import { Refused } from "../wire/refusal.ts";
import type { Stage } from "../wire/task.ts";

/**
 * The body of a report. Without sums it is that of no records: to tell them apart would tell of the records. No sum is too large:
 * every one counts modulo 2^modulus, so that a record moves the report by its own part and by nothing else.
 */
export async function noisySums({ values, noise: bits, modulus }: Stage, sums: Float64Array | null, words: Words): Promise<Uint8Array<ArrayBuffer>> {
  if (sums !== null && sums.length !== values) throw new Refused(`training gave ${sums.length} sums where ${values} were asked for`);
  const exact = sums ?? new Float64Array(values);
  const drawn = await wholeNoise(words, 0, values, discreteGaussian(bits));
  return packIntegers(exact.map((sum, i) => wrapped(wrapped(sum, modulus) + drawn[i]!, modulus)), -(2 ** (modulus - 1)), 2 ** (modulus - 1) - 1);
}

/** The sums that the server reads in a report. */
export function readSums({ modulus }: Stage, body: Uint8Array): Float64Array {
  return unpackIntegers(body, -(2 ** (modulus - 1)), 2 ** (modulus - 1) - 1);
}
