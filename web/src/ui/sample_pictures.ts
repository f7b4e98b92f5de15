/** Some public examples of a federation, to look at: pictures, or nothing where there are none to show. */

import { publicExamples } from "../session/session.ts";
import type { Detail, Task } from "./api.ts";
import { h } from "./dom.ts";
import { thumbnail } from "./pad.ts";

/** How many pictures are shown. */
const SHOWN = 10;

/** A row of pictures, which fills itself when they come; a table shows the names of its columns instead. */
export function samplePictures(detail: Detail): HTMLElement {
  const { task } = detail;
  if (task.input.kind === "features") return columnNames(task);
  const row = h("ul", { class: "samples", "aria-label": "Public examples, such as the model learns from" });
  if (!detail.sample || !isGrey(task)) row.hidden = true;
  else
    publicExamples(location.origin, detail.name, task, SHOWN).then(
      (examples) => row.replaceChildren(...examples.map(({ values, label }) => h("li", {}, pictureOf(values, task, label)))),
      () => (row.hidden = true),
    );
  return row;
}

function pictureOf(values: Float32Array, task: Task, label: number): HTMLElement {
  const [height, width] = task.input.shape.slice(-2) as [number, number];
  const scale = 255 / (task.input.largest ?? 255);
  const pixels = Uint8Array.from(values, (value) => Math.round(scale * value));
  return thumbnail({ width, height, pixels }, `an example of ${task.classes[label] ?? label}`);
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
