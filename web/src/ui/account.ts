/** Which figure is which: what this page counts itself, and what the server states about the same thing. */

import { figure, type ServerStatement, type StatementRow } from "./api.ts";
import { fill, h } from "./dom.ts";
import { change, delta, epsilon } from "./words.ts";

/** What this page counts: its limit and, while it takes part, what is spent of it. */
export interface Own {
  limit: number;
  delta: number;
  basis: "proven" | "claimed";
  adjacency: string;
  spent?: number;
}

export interface Figured {
  kind: "proven" | "claimed" | "stated";
  name: string;
  figure: string;
  delta: number;
  words: string;
}

/** Both accounts of the same change, the page's own first; nothing where the page has no bound to count. */
export function accountsOf(own: Own, statement: ServerStatement | null): Figured[] {
  if (!Number.isFinite(own.limit) || (own.spent !== undefined && !Number.isFinite(own.spent))) return [];
  const row = sameChange(own, statement?.rows ?? []);
  return [ofPage(own), ...(row === null ? [] : [ofServer(row, own, statement?.scope)])];
}

/** The server's row about the same change; where participants differ, the one who is protected least. */
function sameChange(own: Own, rows: readonly StatementRow[]): StatementRow | null {
  const same = rows.filter(
    ({ adversary, adjacency }) => adversary === "server" && change(adjacency) === change(own.adjacency),
  );
  const worst = (a: StatementRow, b: StatementRow): StatementRow =>
    figure(a.proven.epsilon) >= figure(b.proven.epsilon) ? a : b;
  return same.length === 0 ? null : same.reduce(worst);
}

function ofPage(own: Own): Figured {
  const most = `at most ${epsilon(own.limit)}`;
  const figure = own.spent === undefined ? most : `${epsilon(own.spent)} so far, ${most}`;
  if (own.basis === "claimed") {
    return {
      kind: "claimed",
      name: "Counted by this page, as claimed",
      figure,
      delta: own.delta,
      words:
        "Your page adds up what the authors of the method state, and reports nothing beyond your limit. Nothing proves what it adds up: do not rely on it.",
    };
  }
  return {
    kind: "proven",
    name: "Counted by this page",
    figure,
    delta: own.delta,
    words:
      "Your page works this out itself, from the noise that it adds, and takes nobody's word for it. It holds even if the server chooses each round after seeing everything before, and your page reports nothing beyond it. This is the figure to rely on.",
  };
}

function ofServer({ proven }: StatementRow, own: Own, scope: ServerStatement["scope"]): Figured {
  const what =
    scope === "run" ? "for what participants have sent" : "for all planned rounds, with the federation's usual noise";
  const beside =
    own.basis === "claimed"
      ? "It counts the noise itself, and not what the authors state."
      : "It counts a schedule that is known as a whole, so it can be lower than your page's figure for the same noise.";
  return {
    kind: "stated",
    name: "Stated by the server",
    figure: epsilon(figure(proven.epsilon)),
    delta: proven.delta,
    words: `The server's program works this out ${what}. ${beside} Your page does not check it.`,
  };
}

/** Shows both, and keeps up with what the page counts. */
export class AccountsView {
  readonly element = h("div", { class: "stack accounts", hidden: true });
  private readonly statement: ServerStatement | null;

  constructor(statement: ServerStatement | null) {
    this.statement = statement;
  }

  tell(own: Own): void {
    const found = accountsOf(own, this.statement);
    this.element.hidden = found.length === 0;
    fill(
      this.element,
      h("p", {}, `For ${change(own.adjacency)}, against the server, in all rounds together:`),
      h("div", { class: "onlookers" }, ...found.map(card)),
    );
  }
}

/** On which basis each stands: no epsilon is shown without one. */
const BASIS: Record<Figured["kind"], string> = {
  proven: "epsilon, proven",
  claimed: "epsilon, claimed",
  stated: "epsilon, stated as proven",
};

function card({ kind, name, figure: value, delta: slack, words }: Figured): HTMLElement {
  return h(
    "article",
    { class: "onlooker", "data-account": kind },
    h("h3", {}, name),
    h(
      "dl",
      { class: "figures" },
      h("div", { class: kind }, h("dt", {}, BASIS[kind]), h("dd", {}, value, h("small", {}, `at delta ${delta(slack)}`))),
    ),
    h("p", { class: "small" }, words),
  );
}
