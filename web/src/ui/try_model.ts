/** Trying the model on an own drawing. The drawing and the answer stay in the page. */

import type { Prediction, Session } from "../session/session.ts";
import type { Task } from "./api.ts";
import { pictureSize } from "./data_choice.ts";
import { fill, h, say } from "./dom.ts";
import { Pad } from "./pad.ts";
import { tableView } from "./try_table.ts";
import { percent } from "./words.ts";

const PAUSE = 120;

export function tryView(task: Task, session: Pick<Session, "predict">): HTMLElement {
  if (task.input.kind === "features") return tableView(task, session);
  const verdict = h("p", { class: "verdict", role: "status" }, "Draw something.");
  const answers = h("ol", { class: "answers", "aria-label": "How sure the model is" });
  let timer = 0;
  const ask = (): void => {
    window.clearTimeout(timer);
    if (pad.isEmpty) {
      say(verdict, "Draw something.");
      return fill(answers);
    }
    timer = window.setTimeout(async () => {
      const [height, width] = pictureSize(task);
      try {
        show(await session.predict(pad.picture(width, height)));
      } catch (problem) {
        say(verdict, problem instanceof Error ? problem.message : "The model could not be asked.");
      }
    }, PAUSE);
  };
  const show = (prediction: Prediction): void => {
    const name = (k: number): string => task.classes[k] ?? String(k);
    say(verdict, `The model says: ${name(prediction.best)}`);
    const order = prediction.probabilities
      .map((share, k) => ({ share, k }))
      .sort((a, b) => b.share - a.share)
      .slice(0, 3);
    fill(
      answers,
      ...order.map(({ share, k }) =>
        h(
          "li",
          { class: k === prediction.best ? "best" : "" },
          h("span", {}, name(k)),
          h("meter", { min: 0, max: 1, value: share.toFixed(3), "aria-label": `${name(k)}: ${percent(share, 0)}` }),
          h("span", {}, percent(share, 0)),
        ),
      ),
    );
  };
  const pad = new Pad("Draw here to try the model", () => ask());
  return h(
    "div",
    { class: "pad-and-side" },
    h(
      "div",
      {},
      pad.canvas,
      h("div", { class: "row" }, h("button", { type: "button", onclick: () => pad.clear() }, "Clear")),
    ),
    h(
      "div",
      {},
      verdict,
      answers,
      h(
        "p",
        { class: "small quiet" },
        "Your drawing is not sent anywhere: the model is in this page. It knows only what it was trained on, so it also gives an answer to a drawing of a cat.",
      ),
    ),
  );
}
