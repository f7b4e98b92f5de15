/** Something that was given is not accepted; the text says what is wrong and what to do, in words for the person. */
export class Refused extends Error {
  override readonly name = "Refused";
}

/** What training ends with where the person paused: nothing of what was computed is kept. */
export const STOPPED = "training was stopped";
