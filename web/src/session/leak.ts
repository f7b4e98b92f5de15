/** What the server could make of a picture in this page's reports, before joining: computed in a worker, and sent nowhere. */
import { hasClosedForm, type Guess, type Reports } from "../privacy/leak.ts";
import { Refused } from "../wire/refusal.ts";
import { type Task, readTask } from "../wire/task.ts";
import { normalised, rawValues } from "../workers/data.ts";
import type { PublicExample } from "./before.ts";
import { recordOf } from "./predictor.ts";
import { leakRoom } from "./rooms.ts";
import type { Example } from "./session.ts";

export type { Reports } from "../privacy/leak.ts";

/** What an attack makes of a picture, in raw values. */
export interface PictureGuess {
  values: Float32Array;
  /** whether it picks the picture among all candidates */
  isNearest: boolean;
}

export interface PictureLeak {
  /** what is attacked */
  values: Float32Array;
  bare: PictureGuess | null;
  sent: PictureGuess | null;
  gradients: number;
  /** pictures to pick from, the true one included */
  candidates: number;
}

export interface Leaks {
  /** Attacks reports with a picture in them; null: with a public one, which nothing is learnt from. */
  attack(picture: Example | null, reports: Reports): Promise<PictureLeak>;
  /** Ends the worker, if one has begun. */
  close(): void;
}

/** the public example that is shown before something is drawn: of the fifth class, as examples come of each class in turn */
const SHOWN = 4;

/** Null where records of a task cannot be read off its reports by a closed form. Nothing begins before the first attack. */
export function openLeaks(given: unknown, examples: Promise<PublicExample[]>, room = leakRoom): Leaks | null {
  const task = readable(given);
  if (task === null || !hasClosedForm(task)) return null;
  let opened: Promise<{ remote: ReturnType<typeof leakRoom>["remote"]; shown: PublicExample; candidates: number }> | null = null;
  let worker: ReturnType<typeof leakRoom> | null = null;
  const open = async () => {
    const all = await examples;
    const shown = all[SHOWN] ?? all[0];
    if (shown === undefined) throw new Refused("the server has no public pictures to learn from");
    const others = all.filter((example) => example !== shown);
    worker ??= room();
    const x = normalised(Float32Array.from(others.flatMap(({ values }) => [...values])), task);
    await worker.remote.open(task, x, Int32Array.from(others, ({ label }) => label));
    return { remote: worker.remote, shown, candidates: all.length };
  };
  return {
    async attack(picture, reports) {
      opened ??= open().catch((error: unknown) => {
        opened = null;
        throw error;
      });
      const { remote, shown, candidates } = await opened;
      const record = picture === null ? normalised(shown.values, task) : recordOf(picture, task);
      const { bare, sent, gradients } = await remote.attack(record, reports);
      const raw = (guess: Guess | null) => guess && { values: rawValues(guess.record, task), isNearest: guess.isNearest };
      return { values: rawValues(record, task), bare: raw(bare), sent: raw(sent), gradients, candidates };
    },
    close: () => worker?.close(),
  };
}

/** The task, or null where this page cannot carry it out: the form says why. */
function readable(given: unknown): Task | null {
  try {
    return readTask(given);
  } catch (error) {
    if (error instanceof Refused) return null;
    throw error;
  }
}
