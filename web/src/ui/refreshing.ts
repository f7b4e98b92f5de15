/** Keeps a view that is not told anything by itself up to date. */

import { ASKING } from "./api.ts";

/**
 * Asks again every `ASKING` seconds and hands on an answer that is another than the last; the result ends that. A question
 * that fails is asked again: what is shown stays.
 */
export function refresh<T>(known: T, ask: () => Promise<T>, changed: (now: T) => void): () => void {
  let [before, stopped] = [JSON.stringify(known), false];
  const again = async (): Promise<void> => {
    const now = await ask().catch(() => null);
    if (stopped) return;
    if (now !== null && JSON.stringify(now) !== before) {
      before = JSON.stringify(now);
      changed(now);
    }
    timer = setTimeout(() => void again(), 1000 * ASKING);
  };
  let timer = setTimeout(() => void again(), 1000 * ASKING);
  return () => {
    stopped = true;
    clearTimeout(timer);
  };
}
