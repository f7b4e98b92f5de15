/**
 * The one form of all binary messages (docs/wire.md), little-endian: two letters, version u8, kind u8, fixed fields, blobs
 * (length u32, bytes), the rest.
 */
import { Refused } from "./refusal.ts";

export const VERSION = 2;
const HEAD = 4;

export interface Parts {
  kind: number;
  /** fixed fields; offsets count from the first of them */
  fields: DataView;
  blobs: Uint8Array<ArrayBuffer>[];
  rest: Uint8Array<ArrayBuffer>;
}

/** What a message holds; `size` is that of its fixed fields, `count` the number of its blobs. */
export function unpack(what: string, magic: string, message: Uint8Array<ArrayBuffer>, size = 0, count = 0): Parts {
  if (message.length < HEAD) throw new Refused(`a ${what} was cut off`);
  if (message[0] !== magic.charCodeAt(0) || message[1] !== magic.charCodeAt(1)) throw new Refused(`this is not a ${what} of a federation`);
  if (message[2] !== VERSION) {
    throw new Refused(`the server speaks version ${message[2]} of the wire format, this page version ${VERSION}: reload the page`);
  }
  const view = new DataView(message.buffer, message.byteOffset, message.byteLength);
  const blobs: Uint8Array<ArrayBuffer>[] = [];
  let at = HEAD + size;
  for (let i = 0; i < count; i += 1) {
    const start = at + 4;
    at = start <= message.length ? start + view.getUint32(start - 4, true) : Infinity;
    if (at > message.length) throw new Refused(`a ${what} was cut off`);
    blobs.push(message.slice(start, at));
  }
  if (at > message.length) throw new Refused(`a ${what} was cut off`);
  return { kind: message[3]!, fields: new DataView(message.slice(HEAD, HEAD + size).buffer), blobs, rest: message.slice(at) };
}

export function pack(magic: string, kind: number, fields: Uint8Array, blobs: readonly Uint8Array[], rest: Uint8Array): Uint8Array<ArrayBuffer> {
  const head = Uint8Array.of(magic.charCodeAt(0), magic.charCodeAt(1), VERSION, kind);
  return joined(head, fields, ...blobs.flatMap((blob) => [length(blob), blob]), rest);
}

/** The length of a blob, as it comes before it. */
export function length(blob: Uint8Array): Uint8Array<ArrayBuffer> {
  const found = new Uint8Array(4);
  new DataView(found.buffer).setUint32(0, blob.length, true);
  return found;
}

export function joined(...parts: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
