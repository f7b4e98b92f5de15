/** Says that the server is being asked, where its answer takes long enough for somebody to wonder. */

import { fill, h } from "./dom.ts";

/** Milliseconds after which somebody wonders. */
const SOON = 1000;

/** What was asked for; `current` says whether the view is still this question's. */
export async function awaited<T>(asked: Promise<T>, view: Element, current: () => boolean): Promise<T> {
  const late = setTimeout(() => {
    if (current()) fill(view, h("p", { class: "quiet", role: "status" }, "Asking the server…"));
  }, SOON);
  try {
    return await asked;
  } finally {
    clearTimeout(late);
  }
}
