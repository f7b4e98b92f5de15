/** The privacy statement for people: what is proven, what is only claimed, what was measured, and whom one must trust. */

import { figure, type Figure, type ServerStatement, type StatementRow } from "./api.ts";
import { add, details, facts, h, type Child } from "./dom.ts";
import {
  change,
  delta,
  epsilon,
  inHundred,
  NO_MEANINGFUL_PROTECTION,
  onlooker,
  strength,
  surest,
  type Whose,
} from "./words.ts";

const DIRECTIONS = { proven: "up", claimed: "nearest", audited: "down" } as const;

export interface Build {
  hash: string;
  files: Record<string, string>;
}

export function statementView(statement: ServerStatement | null, whose: Whose): HTMLElement {
  const section = h("div", { class: "statement" });
  if (statement === null) {
    add(section, [
      h(
        "p",
        {},
        "The server has no privacy statement for this federation, so nothing can be said about what it protects.",
      ),
    ]);
    return section;
  }
  const rows = statement.rows ?? [];
  add(section, [
    whose === "yours" && h("h3", {}, "What the server states"),
    h("p", {}, scopeWords(statement, whose)),
    rows.length > 0 && h("div", { class: "onlookers" }, ...shown(rows).map((row) => card(row, whose))),
    rows.length > 0 &&
      !rows.some(({ adjacency }) => adjacency === "client") &&
      h("p", { class: "note" }, wholeWords(whose)),
    details("How to read these figures", ...reading(whose)),
    details("The whole statement, word for word", sentences(statement), table(rows)),
  ]);
  return section;
}

function scopeWords(statement: ServerStatement, whose: Whose): string {
  const about =
    statement.scope === "run"
      ? "This is about everything that participants have sent in this federation so far."
      : "This is about all planned rounds together, for somebody who takes part in every one.";
  return whose === "yours" ? `${about} The server's program worked it out; your page has not checked it.` : about;
}

function wholeWords(whose: Whose): string {
  const all = whose === "yours" ? "all of your data" : "all data of a participant";
  return `These figures are about single examples: each can hide among the others. About ${all} taken together, such as what kind of examples they are, nothing is proven.`;
}

/** A card for each change and onlooker; where participants differ, the one who is protected least speaks for all. */
function shown(rows: readonly StatementRow[]): StatementRow[] {
  const worst = new Map<string, StatementRow>();
  for (const row of rows) {
    const key = `${row.adversary}|${row.adjacency}`;
    const known = worst.get(key);
    if (known === undefined || figure(known.proven.epsilon) < figure(row.proven.epsilon)) worst.set(key, row);
  }
  const proven = [...worst.values()].sort((a, b) => figure(a.proven.epsilon) - figure(b.proven.epsilon));
  return proven.slice(0, 6);
}

function card(row: StatementRow, whose: Whose): HTMLElement {
  const proven = figure(row.proven.epsilon);
  const slack = row.proven.delta;
  return h(
    "article",
    { class: "onlooker" },
    h("h3", {}, capital(change(row.adjacency, whose))),
    h("p", { class: "quiet small" }, `seen by ${onlooker(row.adversary, whose)}`),
    h(
      "dl",
      { class: "figures" },
      figureOf("proven", whose === "yours" ? "epsilon, stated as proven" : "proven epsilon", row.proven.epsilon, slack),
      row.claimed && figureOf("claimed", "claimed epsilon", row.claimed.epsilon, row.claimed.delta),
      row.audited && figureOf("audited", "measured: at least", row.audited.epsilon, row.audited.delta),
    ),
    h("p", { class: "row" }, ...badges(row, whose)),
    h("p", { class: "small" }, provenWords(proven, slack, whose)),
    row.claimed &&
      h(
        "p",
        { class: "small quiet" },
        `The claim: ${row.claimed.formula ?? "no formula is given"}. A claim is what an author states; it protects nobody by itself.`,
      ),
    !row.audited && h("p", { class: "small quiet" }, "Not audited in this federation: no attack was tried on it."),
  );
}

function figureOf(kind: keyof typeof DIRECTIONS, name: string, value: Figure, slack: number): HTMLElement {
  return h(
    "div",
    { class: kind },
    h("dt", {}, name),
    h("dd", {}, epsilon(figure(value), DIRECTIONS[kind]), h("small", {}, `at delta ${delta(slack)}`)),
  );
}

function badges(row: StatementRow, whose: Whose): Child[] {
  const proven = figure(row.proven.epsilon);
  const { word, kind } = strength(proven, row.adjacency, row.proven.delta);
  const found: Child[] = [];
  if (!Number.isFinite(proven)) found.push(h("span", { class: "badge bad" }, "nothing is proven"));
  else
    found.push(
      h(
        "span",
        { class: `badge ${kind}` },
        kind === "bad" ? word : `${whose === "yours" ? "stated as proven" : "proven"}: ${word}`,
      ),
    );
  if (row.claimed)
    found.push(h("span", { class: row.verdict === "claim proven" ? "badge good" : "badge warn" }, row.verdict));
  return found;
}

function provenWords(proven: number, slack: number, whose: Whose): string {
  if (!Number.isFinite(proven)) return "There is no proof that this is hidden.";
  if (proven > NO_MEANINGFUL_PROTECTION)
    return whose === "yours"
      ? "Even if the figure is right, it is so large that it protects nobody in practice."
      : "The proof holds, but of so little that it protects nobody in practice.";
  const reader = whose === "yours" ? "If the figure is right, whoever" : "Whoever";
  return `${reader} tries to tell the two cases apart from everything that was sent is right at most ${inHundred(surest(proven, slack))}, where guessing is right 50 times in 100.`;
}

function reading(whose: Whose): Child[] {
  return [
    h(
      "p",
      {},
      "Epsilon is a number for how much somebody can learn from what leaves. 0 is nothing. Each step upwards multiplies the odds of a right guess; above 20 nothing is really protected. An epsilon means something only together with what may change, who is looking, and why it is true.",
    ),
    facts("facts", [
      ["Proven", "follows from mathematics about what this program does, whatever the server does with it."],
      ["Claimed", "is what the authors of a method state. Where it is not proven too, do not rely on it."],
      [
        "Audited",
        "is what an attack really achieved in an experiment: the true epsilon is at least that. A small figure here is no evidence of safety.",
      ],
      [
        "What may change",
        `(adjacency) is what stays hidden: one example, one label, or all data of ${whose === "yours" ? "yours" : "a participant"}.`,
      ],
      [
        "Who is looking",
        "(adversary) is whom it stays hidden from. The server sees most; whoever sees less learns less.",
      ],
      [
        "Two figures",
        "for the same thing can differ: a page's own record counts more cautiously than this statement, because it must hold whatever the server asks next.",
      ],
      ["Delta", "is the small chance that is left over in such proofs, such as one in 100,000."],
    ]),
  ];
}

function sentences(statement: ServerStatement): HTMLElement {
  return h("ul", {}, ...statement.sentences.map((sentence) => h("li", {}, sentence)));
}

function table(rows: readonly StatementRow[]): Child {
  if (rows.length === 0) return null;
  const head = ["what may change", "who is looking", "claimed", "proven", "audited", "verdict", "basis"];
  const line = (row: StatementRow): HTMLElement =>
    h(
      "tr",
      {},
      h("td", {}, row.adjacency),
      h("td", {}, row.adversary),
      h("td", {}, row.claimed ? `${epsilon(figure(row.claimed.epsilon), DIRECTIONS.claimed)} (delta ${delta(row.claimed.delta)})` : "none"),
      h("td", {}, `${epsilon(figure(row.proven.epsilon))} (delta ${delta(row.proven.delta)})`),
      h("td", {}, row.audited ? `at least ${epsilon(figure(row.audited.epsilon), DIRECTIONS.audited)}` : "not audited"),
      h("td", {}, row.verdict),
      h("td", {}, row.basis.join("; ") || row.proven.unproven.join("; ")),
    );
  return h(
    "div",
    { class: "scroll statement-table", tabindex: 0, role: "region", "aria-label": "All figures of the statement" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, ...head.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...rows.slice(0, 100).map(line)),
    ),
  );
}

/** What no proof can cover: the page itself comes from somewhere. */
export function trustView(build: Build | null, operator: string): HTMLElement {
  return h(
    "div",
    { class: "stack" },
    h(
      "p",
      {},
      `You trust this page as you trust ${operator || "whoever serves it"}. The page adds the noise and keeps your record, so whoever serves the page could serve another one that does not. No proof on this page can rule that out.`,
    ),
    h(
      "p",
      {},
      "What you can do: compare the page's fingerprint below with the one that was published for this version, load the page from a place you trust, or take part with the program ",
      h("code", {}, "sordino join"),
      ", which comes from no web server.",
    ),
    build === null
      ? h("p", { class: "quiet" }, "This page was not made by a release build, so it has no fingerprint.")
      : h(
          "div",
          {},
          facts("facts", [["Fingerprint", h("code", { class: "build-hash" }, build.hash)]]),
          h(
            "p",
            { class: "small quiet" },
            "SHA-256 over all files of the page. Building the same version again gives the same fingerprint.",
          ),
        ),
  );
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
