/** Trying a model that reads tables: one field for each column. What is entered and the answer stay in the page. */

import { publicExamples, type Predictor, type Prediction, type PublicExample, type Session } from "../session/session.ts";
import { wordsOf } from "../wire/refusal.ts";
import type { Column, Detail, Task } from "./api.ts";
import { details, fill, h, say } from "./dom.ts";
import { sentence } from "./front.ts";
import { bar, hasAnswer, NO_ANSWER, tryView } from "./try_model.ts";

/** Milliseconds without a key after which the model is asked. */
const PAUSE = 150;
/** Fields that are shown at once; the others fold away. */
const SHOWN = 12;
/** Classes that are shown at most, the likeliest. */
const MOST_BARS = 6;
const EXAMPLES = 20;

/** A pad or a form, whichever the model reads. */
export function trialView(detail: Detail, predictor: Pick<Predictor, "predict">, onModel: (renew: () => void) => void = () => {}): HTMLElement {
  if (detail.task.input.kind !== "features") return tryView(detail.task, predictor, onModel);
  const some = detail.sample ? () => publicExamples(location.origin, detail.name, detail.task, EXAMPLES) : null;
  return tableView(detail.task, predictor, some, onModel);
}

/** A field of the form: what it is called, what it may hold, and what stands in it at first. */
export interface Field extends Column {
  value: number;
}

/** Fields in the order of the model's inputs; the usual value is the middle of the range, else the mean. */
export function fieldsOf({ input }: Pick<Task, "input">): Field[] {
  const count = input.shape.reduce((product, side) => product * side, 1);
  const means = input.mean !== undefined && input.mean.length === count && count > 1 ? input.mean : null;
  return Array.from({ length: count }, (_, k) => {
    const { name, low, high } = input.columns?.[k] ?? { name: `column ${k + 1}`, low: null, high: null };
    const usual = low !== null && high !== null ? (low + high) / 2 : (means?.[k] ?? 0);
    return { name, low, high, value: Number(usual.toPrecision(4)) };
  });
}

/** What a field may hold, in a few words; nothing where nobody knows. */
export function rangeWords({ low, high }: Pick<Column, "low" | "high">): string {
  if (low !== null && high !== null) return `${low} to ${high}`;
  if (low !== null) return `from ${low}`;
  return high !== null ? `up to ${high}` : "";
}

function tableView(
  task: Task,
  predictor: Pick<Session, "predict">,
  examples: (() => Promise<PublicExample[]>) | null,
  onModel: (renew: () => void) => void,
): HTMLElement {
  const fields = fieldsOf(task);
  const says = h("span");
  const answer = h("b", { class: "answer" });
  const verdict = h("p", { class: "verdict", role: "status" }, says, answer);
  const tell = (words: string, best = ""): void => {
    say(says, words);
    say(answer, best);
  };
  const truth = h("p", { class: "small quiet" });
  const answers = h("ol", { class: "answers", "aria-label": "How sure the model is" });
  let [timer, asked] = [0, 0];
  const inputs = fields.map(({ low, high, value }, k) =>
    h("input", { type: "number", id: `column-${k}`, step: "any", min: low, max: high, value, inputmode: "decimal", oninput: () => changed() }),
  );
  const ask = async (): Promise<void> => {
    const turn = (asked += 1);
    const wrong = inputs.findIndex((input) => input.value.trim() === "" || !Number.isFinite(Number(input.value)));
    if (wrong >= 0) return tell(`Enter a number for “${fields[wrong]!.name}”.`);
    try {
      const prediction = await predictor.predict({ values: inputs.map((input) => Number(input.value)) });
      if (turn === asked) show(prediction);
    } catch (problem) {
      if (turn === asked) tell(sentence(wordsOf(problem)));
    }
  };
  const changed = (): void => {
    say(truth, "");
    window.clearTimeout(timer);
    timer = window.setTimeout(() => void ask(), PAUSE);
  };
  const name = (k: number): string => task.classes[k] ?? String(k);
  const show = (prediction: Prediction): void => {
    const { probabilities, best } = prediction;
    const answered = hasAnswer(prediction);
    if (!answered) tell(NO_ANSWER);
    else tell("The model says: ", name(best));
    const shown = probabilities.map((share, k) => ({ share, k })).sort((a, b) => b.share - a.share).slice(0, MOST_BARS);
    fill(answers, ...shown.map(({ share, k }) => bar(name(k), share, answered && k === best)));
  };
  let next = 0;
  const example = h("button", {
    type: "button",
    onclick: async () => {
      const some = await examples?.().catch(() => []);
      const one = some?.[next++ % some.length];
      if (one === undefined) return say(truth, "No example could be fetched.");
      inputs.forEach((input, k) => (input.value = String(Number(one.values[k]!.toPrecision(6)))));
      say(truth, `This is a public example of “${name(one.label)}”.`);
      await ask();
      return undefined;
    },
  }, "Fill in an example");
  onModel(() => void ask());
  queueMicrotask(() => void ask());
  const shown = fields.map((field, k) => fieldView(field, inputs[k]!));
  return h(
    "div",
    { class: "try-table" },
    h("div", {}, verdict, truth, answers),
    examples !== null && h("p", {}, example),
    h("div", { class: "table-fields" }, ...shown.slice(0, SHOWN)),
    shown.length > SHOWN && details(`The other ${shown.length - SHOWN} columns`, h("div", { class: "table-fields" }, ...shown.slice(SHOWN))),
    h("p", { class: "small quiet" }, "What you enter is not sent anywhere: the model is in this page."),
  );
}

function fieldView(field: Field, input: HTMLInputElement): HTMLElement {
  const range = rangeWords(field);
  return h(
    "div",
    { class: "field" },
    h("label", { for: input.id }, field.name, range !== "" && h("span", { class: "hint" }, ` ${range}`)),
    input,
  );
}
