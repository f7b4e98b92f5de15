/**
 * One AES-256 keystream for every random decision (docs/bits.md), through WebCrypto.
 *
 * A counter block is client u32 | round u32 | purpose u16 | tensor u16 | block u32, big-endian, so that a stream is AES in
 * counter mode over zeros. A real client takes a fresh key for every release, and client = round = 0.
 */

export const PURPOSE = { noise: 1, order: 2, longer: 2 ** 15 } as const;

const BLOCK_WORDS = 4;
/** of one stream */
export const STREAM_WORDS = BLOCK_WORDS * 2 ** 32;
/** words made with one call of the cipher at most */
const PIECE_WORDS = 2 ** 20;
const LITTLE_ENDIAN = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;

export interface Words {
  /** `count` words of a stream from word `first` (a multiple of 4) on. */
  words(purpose: number, tensor: number, first: number, count: number): Promise<Uint32Array>;
}

export class Keystream implements Words {
  readonly #key: CryptoKey;
  readonly #client: number;
  readonly #round: number;
  /** where each stream of a fresh key has been read to */
  readonly #readTo: Map<number, number> | null;

  private constructor(key: CryptoKey, client: number, round: number, readTo: Map<number, number> | null) {
    this.#key = key;
    this.#client = client;
    this.#round = round;
    this.#readTo = readTo;
  }

  /** A new key from the operating system, for one release and no other; no word of it is given out twice. */
  static async fresh(): Promise<Keystream> {
    const key = await crypto.subtle.generateKey({ name: "AES-CTR", length: 256 }, false, ["encrypt"]);
    return new Keystream(key, 0, 0, new Map());
  }

  /** For test vectors alone. */
  static async withKey(key: Uint8Array<ArrayBuffer>, client = 0, round = 0): Promise<Keystream> {
    if (key.length !== 32) throw new RangeError(`an AES-256 key has 32 bytes, got ${key.length}`);
    const imported = await crypto.subtle.importKey("raw", key, "AES-CTR", false, ["encrypt"]);
    return new Keystream(imported, client, round, null);
  }

  async words(purpose: number, tensor: number, first: number, count: number): Promise<Uint32Array> {
    if (first % BLOCK_WORDS || first < 0 || count < 1) {
      throw new RangeError(`words are read from a multiple of ${BLOCK_WORDS} on, got ${count} from ${first} on`);
    }
    const start = first / BLOCK_WORDS;
    const blocks = Math.ceil(count / BLOCK_WORDS);
    if (start + blocks > 2 ** 32) throw new RangeError("one stream holds 2^34 words: split the vector");
    this.#forbidReuse(purpose * 2 ** 16 + tensor, start, blocks);
    const bytes = new Uint8Array(16 * blocks);
    for (let done = 0; done < blocks; done += PIECE_WORDS / BLOCK_WORDS) {
      const here = Math.min(blocks - done, PIECE_WORDS / BLOCK_WORDS);
      const algorithm = { name: "AES-CTR", counter: this.#counter(purpose, tensor, start + done), length: 32 };
      bytes.set(new Uint8Array(await crypto.subtle.encrypt(algorithm, this.#key, new Uint8Array(16 * here))), 16 * done);
    }
    return littleEndian(bytes).subarray(0, count);
  }

  #counter(purpose: number, tensor: number, block: number): Uint8Array<ArrayBuffer> {
    const counter = new DataView(new ArrayBuffer(16));
    counter.setUint32(0, this.#client);
    counter.setUint32(4, this.#round);
    counter.setUint16(8, purpose);
    counter.setUint16(10, tensor);
    counter.setUint32(12, block);
    return new Uint8Array(counter.buffer);
  }

  #forbidReuse(stream: number, start: number, blocks: number): void {
    if (this.#readTo === null) return;
    if (start < (this.#readTo.get(stream) ?? 0)) {
      throw new Error("this fresh key was already used here: two releases under the same words would reveal both");
    }
    this.#readTo.set(stream, start + blocks);
  }
}

function littleEndian(bytes: Uint8Array<ArrayBuffer>): Uint32Array {
  if (LITTLE_ENDIAN) return new Uint32Array(bytes.buffer);
  const view = new DataView(bytes.buffer);
  return Uint32Array.from({ length: bytes.length / 4 }, (_, i) => view.getUint32(4 * i, true));
}
