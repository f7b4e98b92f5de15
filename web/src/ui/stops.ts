/** The places of the slider for one's own protection, from what the federation says about itself. */

import type { Outlook } from "../session/session.ts";
import { figure, type RoundEntry, type Spending, type Strength, type Task } from "./api.ts";
import { strength } from "./words.ts";

/** One place of the slider. */
export interface Stop {
  limit: number;
  /** the noise that the page adds, where the federation leaves that to its participants */
  noise: number | null;
  rounds: number;
  accuracy: number | null;
  /** the model's accuracy where nobody else chooses this; null where it was not measured, or nobody chooses a noise */
  alone: number | null;
}

export interface Terms {
  basis: "proven" | "claimed";
  adjacency: string;
  delta: number;
}

/** In which terms this federation counts. */
export function termsOf(task: Task): Terms {
  const spending = firstSpending(task);
  const terms = task.budget ?? spending;
  return terms === null
    ? { basis: "proven", adjacency: "client", delta: 0 }
    : { basis: terms.basis, adjacency: terms.adjacency, delta: terms.delta };
}

function firstSpending(task: Task): Spending | null {
  const all = task.strengths[0]?.spending ?? [];
  // Without a budget of the recipe's own, the figure for one single number would sound like protection of a person.
  const about = task.budget === null ? all.find(({ adjacency }) => adjacency !== "coordinate") : undefined;
  return about ?? all[0] ?? null;
}

/** The places of the slider, the strongest protection first. */
export function stopsOf(task: Task, known: readonly RoundEntry[] = []): Stop[] {
  if (task.choices.length > 1) {
    return task.choices
      .map(({ noise, spending, accuracy, alone }) => ({
        limit: up(figure(spending.epsilon.at(-1))),
        noise,
        rounds: spending.epsilon.length,
        accuracy,
        alone,
      }))
      .sort((a, b) => a.limit - b.limit);
  }
  const totals = (firstSpending(task)?.epsilon ?? []).map(figure);
  const step = Math.max(1, Math.ceil(totals.length / 40));
  const after = (rounds: number): number | null => known.find(({ round }) => round === rounds)?.accuracy ?? null;
  return totals
    .map((limit, k) => ({ limit: up(limit), noise: null, rounds: k + 1, accuracy: after(k + 1), alone: null }))
    .filter(({ rounds }) => rounds % step === 0 || rounds === totals.length);
}

/** Where the slider stands at first: as far as the federation's own budget goes, and never further than it must. */
export function suggested(stops: readonly Stop[], wanted: number | undefined): number {
  if (wanted === undefined) return stops.length - 1;
  return Math.max(0, stops.filter(({ limit }) => limit <= wanted * (1 + 1e-9)).length - 1);
}

/** Neighbouring places of the slider with the same word. */
export interface Group {
  word: string;
  first: number;
  last: number;
}

const WORDS: readonly (readonly [string, string])[] = [
  ["strong", "strong"], ["good", "good"], ["limited", "some"], ["weak", "little"], ["protection of one number", "one number"],
];

/** The words below the slider. */
export function groupsOf(stops: readonly Stop[], { basis, adjacency, delta }: Terms): Group[] {
  const groups: Group[] = [];
  stops.forEach(({ limit }, k) => {
    const full = strength(basis === "proven" ? limit : Infinity, adjacency, delta).word;
    const word = WORDS.find(([begin]) => full.startsWith(begin))?.[1] ?? "none";
    const last = groups.at(-1);
    if (last?.word === word) last.last = k;
    else groups.push({ word, first: k, last: k });
  });
  return groups;
}

/** Epsilon after each round as a share of the limit; rounds that the limit does not pay for are marked. */
export function barsOf(perRound: readonly number[], limit: number): { share: number; paid: boolean }[] {
  return perRound.map((spent) => ({ share: Math.min(1, spent / limit), paid: spent <= limit }));
}

/** Why a budget pays for no round, and what helps; empty where it pays for one. */
export function shortfall(
  { rounds, left, before }: Pick<Outlook, "rounds" | "left" | "before">,
  { most, sample }: { most: boolean; sample: boolean },
): string {
  if (left === 0) return "This browser has answered every round of this federation.";
  if (rounds > 0) return "";
  const ways = [
    ...(most ? [] : ["move the slider towards “Help more”"]),
    ...(sample ? ["take the sample, which is counted by itself"] : []),
  ];
  const why = before > 0 ? "What this browser told before has used up this budget" : "This budget pays for no round";
  return ways.length > 0 ? `${why}: ${ways.join(", or ")}.` : `${why}: there is nothing left to give here. You can watch it without taking part.`;
}

/** Whether a budget stops nothing, because nothing that leaves has a bound. */
export function bindsNothing(task: Task): boolean {
  const open = unbounded(task);
  return task.strengths.every(({ releases }) => releases.length > 0 && releases.every(({ what }) => open.includes(what)));
}

/** Rounded up to three digits, so that the limit pays for what it is shown to pay for. */
export function up(value: number): number {
  if (!Number.isFinite(value) || value <= 0) return value;
  const unit = 10 ** (Math.floor(Math.log10(value)) - 2);
  return Number((Math.ceil(value / unit - 1e-9) * unit).toPrecision(6));
}

/** Whether something leaves of which nothing is proven. */
export function unbounded(task: Task): string[] {
  const open = (strengths: Strength): string[] =>
    strengths.releases
      .filter(({ guarantees }) => guarantees.every((one) => !Number.isFinite(figure(one.epsilon))))
      .map(({ what }) => what);
  return [...new Set(task.strengths.flatMap(open))];
}

/** What is proven after so many rounds, for the same change that a claim is about. */
export function provenAfter(task: Task, adjacency: string, rounds: number): { epsilon: number; delta: number } {
  const found = task.strengths[0]?.spending.find((one) => one.basis === "proven" && one.adjacency === adjacency);
  return { epsilon: figure(found?.epsilon[rounds - 1]), delta: found?.delta ?? 0 };
}
