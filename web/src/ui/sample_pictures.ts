/** Some public examples of a federation, to look at: pictures, or nothing where there are none to show. */

import { publicExamples, type PublicExample } from "../session/session.ts";
import type { Detail, Task } from "./api.ts";
import { h } from "./dom.ts";
import { thumbnail } from "./pad.ts";

/** How many pictures are shown, and how many are looked at. */
const SHOWN = 10;
const MOST = 300;

/** Public pictures of a federation, of each class in turn; null where there are none to show. */
export function publicPictures({ name, task, sample }: Detail): Promise<PublicExample[]> | null {
  return sample && isGrey(task) ? publicExamples(location.origin, name, task, MOST) : null;
}

/** A row of pictures, which fills itself when they come; a table shows the names of its columns instead. */
export function samplePictures({ task }: Detail, pictures: Promise<PublicExample[]> | null): HTMLElement {
  if (task.input.kind === "features") return columnNames(task);
  const row = h("ul", { class: "samples", "aria-label": "Public examples, such as the model learns from", hidden: pictures === null });
  const item = ({ values, label }: PublicExample): HTMLElement => h("li", {}, pictureOf(values, task, `an example of ${task.classes[label] ?? label}`));
  pictures?.then(
    (examples) => row.replaceChildren(...examples.slice(0, SHOWN).map(item)),
    () => (row.hidden = true),
  );
  return row;
}

/** A picture of raw values; what lies beyond black and white is drawn as these. */
export function pictureOf(values: Float32Array, task: Task, label: string): HTMLElement {
  const [height, width] = task.input.shape.slice(-2) as [number, number];
  const scale = 255 / (task.input.largest ?? 255);
  const pixels = Uint8Array.from(values, (value) => Math.round(Math.max(0, Math.min(255, scale * value))));
  return thumbnail({ width, height, pixels }, label);
}

function columnNames({ input }: Task): HTMLElement {
  const names = (input.columns ?? []).map(({ name }) => name);
  const shown = names.slice(0, SHOWN);
  const more = names.length > shown.length ? [`and ${names.length - shown.length} more`] : [];
  return h(
    "ul",
    { class: "column-names", "aria-label": "Columns of the table", hidden: names.length === 0 },
    ...[...shown, ...more].map((name) => h("li", {}, name)),
  );
}

/** Whether pictures have one channel, as drawings do. */
export function isGrey({ input }: Pick<Task, "input">): boolean {
  return input.kind === "image" && (input.shape.length === 2 || input.shape[0] === 1);
}
