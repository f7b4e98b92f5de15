/** Answers of a server over HTTP: all of them, or a sentence that says why not and what to do. */

/** Milliseconds without a byte after which a page gives up; how long all of an answer takes is the network's affair. */
export const SILENCE = 20_000;

/** An answer that did not come, or that cannot be one of the server's. */
export class Unanswered extends Error {
  override readonly name = "Unanswered";

  constructor(readonly why: string, readonly remedy: string) {
    super(`${why}: ${remedy}`);
  }
}

export interface Answer {
  ok: boolean;
  status: number;
  headers: Headers;
  bytes: Uint8Array<ArrayBuffer>;
}

export interface Asking {
  /** the browser's own, unless a test brings another */
  fetch?: typeof fetch;
  accept?: string;
  method?: "GET" | "POST" | "DELETE";
  /** what is sent, as JSON */
  body?: unknown;
  /** says who asks; it never stands in an address */
  token?: string;
  /** whether what follows the head is wanted; of an answer that has no end it is not */
  wanted?: (response: Response) => boolean;
}

/** An answer, unless nothing of it comes for too long. */
export async function fetched(address: string, { fetch = globalThis.fetch, accept = "*/*", method = "GET", body, token = "", wanted = () => true }: Asking = {}): Promise<Answer> {
  const ended = new AbortController();
  let silent = false;
  const giveUp = (): void => {
    silent = true;
    ended.abort();
  };
  let clock = setTimeout(giveUp, SILENCE);
  try {
    const response = await fetch(address, {
      method, headers: { Accept: accept, ...bearing(token) }, signal: ended.signal, ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const pieces: Uint8Array[] = [];
    const reader = wanted(response) ? response.body?.getReader() : undefined;
    for (let piece = await reader?.read(); piece && !piece.done; piece = await reader?.read()) {
      pieces.push(piece.value);
      clearTimeout(clock);
      clock = setTimeout(giveUp, SILENCE);
    }
    return { ok: response.ok, status: response.status, headers: response.headers, bytes: joined(pieces) };
  } catch {
    throw silent ? noWord() : new Unanswered("the server cannot be reached", "check your connection and try again");
  } finally {
    clearTimeout(clock);
    ended.abort(); // lets go of what was not wanted
  }
}

/** The header that says who asks; none without a token. */
export function bearing(token: string): Record<string, string> {
  return token === "" ? {} : { Authorization: `Bearer ${token}` };
}

function noWord(): Unanswered {
  return new Unanswered(
    `nothing came for ${SILENCE / 1000} seconds`,
    "check your connection, sign in if its network asks for that, close other tabs of this server, and try again",
  );
}

/** What an answer says; refused where it says nothing that a server of federations would. */
export function read<T>({ bytes }: Pick<Answer, "bytes">): T {
  const found = readable<T>({ bytes });
  if (found !== null) return found;
  throw new Unanswered(
    "what answered is not the server of this page",
    "perhaps the network asks you to sign in first; open another page, do that, and try again",
  );
}

/** The same; null where it cannot be read. */
export function readable<T>({ bytes }: Pick<Answer, "bytes">): T | null {
  try {
    const found: unknown = JSON.parse(new TextDecoder().decode(bytes));
    return typeof found === "object" ? (found as T | null) : null;
  } catch {
    return null;
  }
}

function joined(pieces: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(pieces.reduce((sum, { length }) => sum + length, 0));
  let end = 0;
  for (const piece of pieces) {
    whole.set(piece, end);
    end += piece.length;
  }
  return whole;
}
