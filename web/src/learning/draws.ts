/** The random decisions of local training, each from the page's own keystream (as sordino.learning.draws has them). */
import { PURPOSE, STREAM_WORDS, type Words } from "../bits/keystream.ts";
import type { Noise } from "../bits/noise.ts";
import { UNREDUCED } from "./whole.ts";

/** What a stream of training is used for: the tensor field of its counter block. */
const DRAW = { order: 0, sample: 1, noise: 2, portions: 16 } as const;

/** Where the words of turn 0, 1, ... begin. */
const turnAt = (turn: number, count: number): number => turn * 4 * Math.ceil(count / 4);

/** Words from `first` on; how many are drawn grows with the records, whose number must break nothing. */
async function draw(words: Words, kind: number, first: number, count: number): Promise<Uint32Array> {
  const [stream, position] = [Math.floor(first / STREAM_WORDS), first % STREAM_WORDS];
  const here = Math.min(count, STREAM_WORDS - position);
  const found = await words.words(...address(kind, stream), position, here);
  if (here === count) return found;
  const whole = new Uint32Array(count);
  whole.set(found);
  whole.set(await words.words(...address(kind, stream + 1), 0, count - here), here);
  return whole;
}

/** The purpose and tensor of a draw's stream 0, 1, ...: together 2^60 words. */
function address(kind: number, stream: number): [purpose: number, tensor: number] {
  if (stream === 0) return [PURPOSE.order, kind];
  const number = PURPOSE.longer * 2 ** 16 + kind * 2 ** 26 + stream;
  return [Math.floor(number / 2 ** 16), number % 2 ** 16];
}

/** A permutation of `records` numbers: the ranks of 64-bit words. */
export async function order(words: Words, epoch: number, records: number): Promise<Int32Array> {
  return ranked(await draw(words, DRAW.order, turnAt(epoch, 2 * records), 2 * records));
}

/** The order in which a client takes up its records, drawn once and kept. */
export async function portions(words: Words, records: number): Promise<Int32Array> {
  return ranked(await draw(words, DRAW.portions, 0, 2 * records));
}

function ranked(lanes: Uint32Array): Int32Array {
  const indices = Int32Array.from({ length: lanes.length / 2 }, (_, i) => i);
  return indices.sort((a, b) => lanes[2 * a + 1]! - lanes[2 * b + 1]! || lanes[2 * a]! - lanes[2 * b]! || a - b);
}

/** The records of a Poisson batch, those of 2^20 at a time: each with probability threshold/2^32. */
export async function* poissonSamples(words: Words, step: number, records: number, threshold: number): AsyncGenerator<number[]> {
  for (let first = 0; first < records; first += UNREDUCED) {
    const drawn = await draw(words, DRAW.sample, turnAt(step, records) + first, Math.min(UNREDUCED, records - first));
    const sample: number[] = [];
    drawn.forEach((word, i) => word < threshold && sample.push(first + i));
    yield sample;
  }
}

/** All records of a Poisson batch. */
export async function poissonSample(words: Words, step: number, records: number, threshold: number): Promise<number[]> {
  const samples: number[][] = [];
  for await (const sample of poissonSamples(words, step, records, threshold)) samples.push(sample);
  return samples.flat();
}

/** Whole-number noise for each of `count` values. */
export async function wholeNoise(words: Words, step: number, count: number, noise: Noise): Promise<Float64Array> {
  const size = noise.wordsPerValue * count;
  const lanes = await draw(words, DRAW.noise, turnAt(step, size), size);
  const values = new Float64Array(count);
  for (let i = 0; i < count; i += 1) values[i] = noise.draw(lanes, i * noise.wordsPerValue);
  return values;
}
