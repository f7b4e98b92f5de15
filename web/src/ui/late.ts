/** A federation that is over, for whoever comes late: what it reached, its model to try, and the files. */

import { openPredictor, type Predictor } from "../session/session.ts";
import { address, type Detail } from "./api.ts";
import { Chart } from "./chart.ts";
import { details, h } from "./dom.ts";
import { aboutView } from "./federation.ts";
import { purpose, sentence } from "./front.ts";
import { statementView, trustView, type Build } from "./statement_view.ts";
import { trialView } from "./try_table.ts";
import { percent, tick, titled } from "./words.ts";

export class LateView {
  readonly element: HTMLElement;
  private readonly predictor: Predictor;

  constructor(detail: Detail, build: Build | null, several: boolean) {
    this.predictor = openPredictor(location.origin, detail.name, detail.task);
    const has = detail.round > 0;
    this.element = h(
      "div",
      { class: "late" },
      several && h("p", { class: "small" }, h("a", { href: "#/" }, "All federations")),
      h("h1", {}, titled(detail.title)),
      h("p", { class: "lead" }, `${purpose(detail.summary)} ${outcome(detail)}`),
      has &&
        h(
          "section",
          { class: "card", "aria-labelledby": "try" },
          h("h2", { id: "try" }, "Try the model"),
          trialView(detail, this.predictor),
        ),
      detail.history.length > 0 && h("div", { class: "card" }, curve(detail)),
      has && filesView(detail.name),
      h(
        "section",
        { class: "more", "aria-label": "Details" },
        details("How participants were protected", statementView(detail.statement, "theirs")),
        details("Whom you have to trust", trustView(build, detail.operator)),
        details("About this federation", aboutView(detail)),
      ),
    );
  }

  /** Ends what computes. */
  close(): void {
    this.predictor.close();
  }
}

/** The files of a federation that is over. */
export function filesView(name: string): HTMLElement {
  return h(
    "section",
    { class: "card", "aria-labelledby": "files" },
    h("h2", { id: "files" }, "Take it with you"),
    h(
      "p",
      { class: "row" },
      h("a", { class: "button", href: `${address(name)}/model.safetensors`, download: true }, "Download the model"),
      h("a", { href: `${address(name)}/report.html` }, "Read the report"),
    ),
  );
}

function outcome(detail: Detail): string {
  const why = sentence(detail.why || "this federation is over");
  return detail.accuracy === null ? `It is over: ${why}` : `It is over, and its model gets ${percent(detail.accuracy)} of unseen examples right.`;
}

function curve(detail: Detail): HTMLElement {
  const chart = new Chart({
    title: "How good the model became",
    note: "Share of unseen test examples that it got right after each round.",
    x: "round",
    y: tick,
  });
  const points = detail.history.flatMap(({ round, accuracy }) => (accuracy === null ? [] : [{ x: round, y: accuracy }]));
  const last = points.at(-1);
  chart.draw({
    series: [{ name: "the shared model", points, colour: 0, area: true }],
    last: detail.rounds,
    top: 1,
    summary: last === undefined ? "No accuracy was measured." : `After round ${last.x} the model got ${percent(last.y)} right.`,
  });
  return chart.element;
}
