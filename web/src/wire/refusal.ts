/** Something that was given is not accepted; the text says what is wrong and what to do, in words for the person. */
export class Refused extends Error {
  override readonly name = "Refused";
}

/** What went wrong, in the words it came with. */
export function wordsOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** What training ends with where the person paused: nothing of what was computed is kept. */
export const STOPPED = "training was stopped";
