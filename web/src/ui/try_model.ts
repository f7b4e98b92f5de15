/** Trying the model on an example of one's own. The example and the answer stay in the page. */

import type { Prediction, Session } from "../session/session.ts";
import { wordsOf } from "../wire/refusal.ts";
import type { Task } from "./api.ts";
import { pictureSize } from "./data_choice.ts";
import { fill, h, s, say } from "./dom.ts";
import { sentence } from "./front.ts";
import { Pad, thumbnail } from "./pad.ts";
import { percent } from "./words.ts";

/** Milliseconds without a stroke after which the model is asked. */
const PAUSE = 120;
/** Classes that are shown at most, the likeliest first where there are more. */
const MOST_BARS = 12;

/** The likeliest class must beat an even guess by so much to be called an answer. */
const MARGIN = 0.02;

/** Whether the model has an answer: before it has learnt, all classes are nearly the same to it. */
export function hasAnswer({ probabilities, best, round }: Pick<Prediction, "probabilities" | "best" | "round">): boolean {
  return round !== 0 && (probabilities[best] ?? 0) - 1 / probabilities.length >= MARGIN;
}

export const NO_ANSWER = "The model cannot tell yet.";

/** Asks the model; `onModel` calls back whenever there is a newer one, and then what was drawn is asked about again. */
export function tryView(task: Task, predictor: Pick<Session, "predict">, onModel: (renew: () => void) => void = () => {}): HTMLElement {
  const [height, width] = pictureSize(task);
  const says = h("span", { class: "says" });
  const answer = h("b", { class: "answer" });
  const verdict = h("p", { class: "verdict", role: "status" }, says, answer);
  const age = h("p", { class: "small quiet" });
  const answers = h("ol", { class: "answers", "aria-label": "How sure the model is" });
  const seen = h("div", { class: "seen" });
  const hint = h("span", { class: "draw-here", "aria-hidden": "true" }, "Draw here");
  let timer = 0;
  let asked = 0;
  const tell = (words: string, best = ""): void => {
    say(says, words);
    say(answer, best);
  };
  const look = (): void => fill(seen, thumbnail(pad.picture(width, height), `The drawing as the model sees it, ${width} by ${height} points`));
  const ask = async (): Promise<void> => {
    const turn = (asked += 1);
    try {
      const prediction = await predictor.predict(pad.picture(width, height));
      if (turn === asked) show(prediction);
    } catch (problem) {
      if (turn === asked) tell(sentence(wordsOf(problem)));
    }
  };
  const changed = (): void => {
    window.clearTimeout(timer);
    look();
    hint.hidden = !pad.isEmpty;
    if (!pad.isEmpty) return void (timer = window.setTimeout(() => void ask(), PAUSE));
    asked += 1; // what was asked about is gone
    tell("Draw something: the model answers.");
    say(age, "");
    fill(answers);
  };
  const show = (prediction: Prediction): void => {
    const name = (k: number): string => task.classes[k] ?? String(k);
    const answered = hasAnswer(prediction);
    if (!answered) tell(NO_ANSWER);
    else tell("The model says: ", name(prediction.best));
    say(age, prediction.round === undefined || prediction.round === 0 ? "" : `Model of round ${prediction.round}.`);
    const all = prediction.probabilities.map((share, k) => ({ share, k }));
    const shown = all.length <= MOST_BARS ? all : all.sort((a, b) => b.share - a.share).slice(0, MOST_BARS);
    fill(answers, ...shown.map(({ share, k }) => bar(name(k), share, answered && k === prediction.best)));
  };
  const pad = new Pad("Draw here to try the model", changed);
  changed();
  onModel(() => {
    if (!pad.isEmpty) void ask();
  });
  return h(
    "div",
    { class: "trying" },
    h("div", { class: "drawn" }, pad.canvas, hint),
    h(
      "div",
      { class: "heard" },
      h("figure", {}, seen, h("figcaption", { class: "small quiet" }, "As the model sees it")),
      h("div", {}, verdict, age),
      h("button", { type: "button", onclick: () => pad.clear() }, "Clear"),
    ),
    answers,
    h(
      "p",
      { class: "small quiet stays" },
      "Your drawing is not sent anywhere: the model is in this page. It knows only what it was trained on, so it also gives an answer to a drawing of a cat.",
    ),
  );
}

export function bar(name: string, share: number, best: boolean): HTMLElement {
  return h(
    "li",
    { class: best ? "best" : "" },
    h("span", { class: "class" }, name),
    s("svg", { viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { width: 100 * share, height: 1 })),
    h("span", {}, percent(share, 0)),
  );
}
