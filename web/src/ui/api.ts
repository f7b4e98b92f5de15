/** What the server says about its federations, as far as the pages show it. The protocol is docs/web-protocol.md. */

import { type Answer, fetched, read, readable } from "../wire/fetching.ts";
import { Refused } from "../wire/refusal.ts";
import { TokenEvents } from "../wire/token_events.ts";

export type Figure = number | "infinite" | "infinity" | null;

export interface Summary {
  name: string;
  /** the name that plans carry: a federation that begins anew has another one */
  federation: string;
  title: string;
  summary: string;
  operator: string;
  method: string;
  clients: number;
  /** places that somebody who comes now could have */
  free: number;
  /** seconds after which the place of somebody who is away may go to another; null where it never does */
  absence: number | null;
  state: "waiting" | "training" | "finished" | "failed";
  round: number;
  rounds: number;
  quorum: number;
  participants: number;
  accuracy: number | null;
  loss: number | null;
  budget: SuggestedBudget | null;
  why: string;
  by_invitation: boolean;
  /** whether one link admits everybody who has it, so that participants may hand theirs on */
  shared_link?: boolean;
  /** seconds until the first round begins; null or absent where no countdown runs */
  starts_in?: number | null;
  /** whether the server has public examples for those who only want to try */
  sample: boolean;
  /** a run that one can watch, and not take part in */
  watched?: boolean;
  /** what the figure is that it is judged by, where that is not accuracy */
  metric?: string;
  score?: number | null;
  /** the last figure on records that members set aside, where they evaluate the model */
  private?: { name: string; value: string; round: number } | null;
}

export type Role = "operator" | "member" | "reader";

export interface SuggestedBudget {
  limit: number;
  delta: number;
  basis: "proven" | "claimed";
  adjacency: string;
  adversary: string;
}

export interface RoundEntry {
  round: number;
  accuracy: number | null;
  loss: number | null;
  asked: number;
  reported: number;
  declined: number;
  refused: number;
  late: number;
  /** whether the round counted: enough reports came */
  counted: boolean;
  seconds: number;
}

export interface StatementRow {
  clients: string[];
  adversary: string;
  adjacency: string;
  basis: string[];
  claimed: { epsilon: Figure; delta: number; formula?: string; adjacency?: string } | null;
  proven: { epsilon: Figure; delta: number; unproven: string[] };
  audited: { epsilon: Figure; delta: number; confidence?: number; attack?: string } | null;
  verdict: string;
}

export interface ServerStatement {
  title: string;
  text?: string;
  sentences: string[];
  rows?: StatementRow[];
  delta?: number;
  scope?: "schedule" | "run";
}

export interface Spending {
  basis: "proven" | "claimed";
  adjacency: string;
  adversary: string;
  delta: number;
  epsilon: Figure[];
}

export interface Guaranteed {
  adversary: string;
  adjacency: string;
  basis: string;
  epsilon: Figure;
  delta: number;
}

export interface ReleaseLine {
  rounds: [number, number];
  what: string;
  claimed: { epsilon: Figure; delta: number; formula: string; adjacency: string; adversary: string } | null;
  guarantees: Guaranteed[];
}

export interface Strength {
  clients: number[];
  epsilon: number | null;
  mechanism: { name: string };
  releases: ReleaseLine[];
  spending: Spending[];
}

export interface StrongerChoice {
  noise: number;
  spending: Spending;
  /** of the model, where everybody chooses this */
  accuracy: number | null;
  /** of the model, where one participant alone chooses this */
  alone: number | null;
}

/** A column of a table, in the order of the model's inputs. */
export interface Column {
  name: string;
  low: number | null;
  high: number | null;
}

/** What the operator's recipe reached where it was measured: over seeds, with so many participants. */
export interface Expected {
  accuracy: number;
  low: number;
  high: number;
  seeds: number;
  participants: number;
}

export interface Task {
  federation: string;
  /** digest of the terms that plans are signed for */
  terms: string;
  title: string;
  summary: string;
  paper?: string | null;
  method: string;
  clients: number;
  rounds: { count: number; quorum: number; deadline: number | null };
  input: { shape: number[]; kind: "image" | "features"; columns?: Column[] | null; mean?: number[]; largest?: number };
  classes: string[];
  model: { name: string; size: number };
  training: { kind: "plain" | "private" | "sums" };
  upload: { what: "weights" | "update" | "sums"; values: number; samples: object | null; norm: number | null };
  strengths: Strength[];
  budget: SuggestedBudget | null;
  choices: StrongerChoice[];
  expected?: Expected | null;
}

export interface Participant {
  client: number;
  kind: "page" | "native";
  /** whether the place is still taken: its holder may have left */
  holds_place: boolean;
  connected: boolean;
  since: number | string | null;
  last_round: number;
  reports: number;
  declined: number;
  refused: number;
  late: number;
}

export interface Live {
  participants: Participant[];
  refused: { client: number; round: number; reason: string }[];
  strays: Record<string, number>;
  waiting_for: number[];
  uptime: number;
  bytes_up: number;
  bytes_down: number;
}

/** What a member has spent by what was released: a figure never stands without its terms. */
export interface Spent {
  epsilon: Figure;
  delta: number;
  claimed: number | null;
  adjacency: string;
  adversary: string;
}

/** Why there was no report in some rounds in a row. */
export interface MemberReason {
  first: number;
  last: number;
  what: "declined" | "refused" | "missing";
  reason: string;
}

/** A member of a watched run. Of others, members are shown the first fields alone. */
export interface MemberActivity {
  number: number;
  name: string;
  reports: number;
  last_round: number;
  spent: Spent | null;
  own?: boolean;
  present?: boolean | null;
  why?: string;
  asked?: number;
  declined?: number;
  refused?: number;
  missing?: number;
  late?: number;
  reasons?: MemberReason[];
}

/** What is shown of a watched run while it goes on, by role. */
export interface RunLive {
  role: Role;
  /** null for those who are not shown who takes part */
  members: MemberActivity[] | null;
  waiting: { step: string; round: number; since: number; answers: number; members?: string[] } | null;
  uptime?: number;
  bytes_up?: number;
  bytes_down?: number;
  /** what went wrong in the view itself */
  problem?: string;
}

/** A federation as the live view shows it: one that pages join, or a run that one can only watch. */
export interface Shown extends Summary {
  history: RoundEntry[];
  statement: ServerStatement | null;
  task: Task | null;
  /** null for those to whom the server does not show single participants */
  live: Live | RunLive | null;
  /** whether places may be freed from here: on the server's own machine */
  may_free: boolean;
  /** the link that the operator may hand on, for requests from the server's own machine; null where places have their own */
  link?: string | null;
}

export interface Detail extends Shown {
  task: Task;
  live: Live | null;
}

/** The server wants to know who asks. */
export class NeedsToken extends Error {
  override readonly name = "NeedsToken";
}

let token = "";

/** Has all requests of this page carry a token from now on; none where it is empty. */
export function carryToken(given: string): void {
  token = given;
}

async function get<T>(path: string): Promise<T> {
  const answer = await fetched(path, { accept: "application/json", token });
  if (answer.status === 401) throw new NeedsToken(wordsOf(answer));
  if (!answer.ok) throw new Refused(wordsOf(answer));
  return read(answer);
}

function wordsOf(answer: Answer): string {
  const said = readable<{ error?: unknown }>(answer)?.error;
  return said ? String(said) : `The server answered ${answer.status}. Try again in a moment.`;
}

const at = (name: string): string => `/api/federations/${encodeURIComponent(name)}`;

export const federations = (): Promise<Summary[]> => get("/api/federations");
export const federation = (name: string): Promise<Detail> => get(at(name));
export const shown = (name: string): Promise<Shown> => get(at(name));
export const address = at;

/** Frees a place, whoever holds it: for the operator, on the server's own machine. */
export async function freePlace(name: string, client: number): Promise<void> {
  const answer = await fetched(`${at(name)}/places/${client}`, { method: "DELETE", accept: "application/json", token });
  if (!answer.ok && answer.status !== 404) throw new Refused(wordsOf(answer)); // 404: it is free already
}

/** Begins the first round now: for the operator, on the server's own machine. */
export const startNow = (name: string): Promise<void> => operate(`${at(name)}/start`, "POST");

/** Begins a federation that is over anew: `rounds` null are the recipe's own. */
export const beginAgain = (name: string, wishes: { rounds: number | null; from_model: boolean }): Promise<void> =>
  operate(`${at(name)}/again`, "POST", wishes);

/** Makes another link that admits everybody, and revokes the one before. */
export async function newLink(name: string): Promise<string> {
  await operate(`${at(name)}/link`, "DELETE");
  return (await federation(name)).link ?? "";
}

async function operate(address: string, method: "POST" | "DELETE", body?: unknown): Promise<void> {
  const answer = await fetched(address, { method, accept: "application/json", body, token });
  if (!answer.ok) throw new Refused(wordsOf(answer));
}

/** How news come: as they happen, by asking now and then, or not at all for the moment. */
export type Reach = "told" | "asking" | "lost";

export interface Listeners {
  summary?: (summary: Summary) => void;
  round?: (entry: RoundEntry) => void;
  live?: (live: Live | RunLive) => void;
  /** only to whom single participants are shown */
  statement?: (statement: ServerStatement | null) => void;
  /** `why` is the server's sentence where it tells this page nothing by itself */
  reach?: (reach: Reach, why: string) => void;
  /** the server has begun another federation under this name: what was known of it is about the one before */
  renewed?: () => void;
}

/** Seconds between two questions of a page that is not told by itself. */
export const ASKING = 15;

/** Seconds without a word, where the server has one every 5, after which a stream is taken for dead, as after a sleep. */
export const STILL = 15;

/**
 * What happens to a federation, beginning with the rounds that are not in `known`. Where the server has too many who watch,
 * this asks now and then, until there is room.
 */
export function follow(known: Pick<Shown, "name" | "federation" | "history">, listeners: Listeners): () => void {
  const { name, history } = known;
  const summary = (told: Summary): void => {
    if (told.federation === known.federation) return listeners.summary?.(told);
    stop();
    return listeners.renewed?.();
  };
  const heard = { ...listeners, summary };
  const lost = (how: Loss): void => {
    listeners.reach?.("lost", "");
    if (how === "refused") stop = ask(name, heard, listenAgain);
    if (how === "silent") listenAgain();
  };
  const opened = (): void => listeners.reach?.("told", "");
  const listenAgain = (): void => {
    stop = listen(`${at(name)}/events?after=${history.at(-1)?.round ?? 0}`, heard, opened, lost);
  };
  let stop = (): void => undefined;
  listenAgain();
  return () => stop();
}

/** How a stream ends: the browser connects again by itself, the server said no, or it died without a word. */
type Loss = "trying" | "refused" | "silent";

function listen(address: string, heard: Listeners, opened: () => void, lost: (how: Loss) => void): () => void {
  const source = token === "" ? new EventSource(address) : new TokenEvents(address, token);
  let clock: ReturnType<typeof setTimeout>;
  const stop = (): void => {
    clearTimeout(clock);
    source.close();
  };
  const alive = (): void => {
    clearTimeout(clock);
    clock = setTimeout(() => {
      stop();
      lost("silent");
    }, 1000 * STILL);
  };
  const on = <T>(event: string, listener?: (value: T) => void): void =>
    source.addEventListener(event, (message) => {
      alive();
      listener?.(JSON.parse((message as MessageEvent<string>).data) as T);
    });
  on("still");
  on("summary", heard.summary);
  on("ended", heard.summary);
  on("round", heard.round);
  on("live", heard.live);
  on("statement", heard.statement);
  source.onopen = () => {
    alive();
    opened();
  };
  source.onerror = () => {
    if (source.readyState === 2) stop();
    lost(source.readyState === 2 ? "refused" : "trying");
  };
  alive();
  return stop;
}

/** Asks until there is room among those who are told by themselves; the result ends that. */
function ask(name: string, listeners: Listeners, room: () => void): () => void {
  let stopped = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const again = async (): Promise<void> => {
    const why = await refusal(name).catch(() => null);
    if (stopped) return;
    if (why === "") return room();
    const detail = why === null ? null : await shown(name).catch(() => null);
    if (stopped) return;
    if (detail !== null) {
      listeners.summary?.(detail);
      if (stopped) return; // it is another federation by now
      for (const entry of detail.history) listeners.round?.(entry);
      if (detail.live !== null) listeners.live?.(detail.live);
    }
    listeners.reach?.(detail === null ? "lost" : "asking", why ?? "");
    timer = setTimeout(() => void again(), 1000 * ASKING);
  };
  void again();
  return () => {
    stopped = true;
    clearTimeout(timer);
  };
}

/** Why the server does not tell this page by itself, in its words; empty where it would. */
async function refusal(name: string): Promise<string> {
  const answer = await fetched(`${at(name)}/events`, { token, wanted: ({ ok }) => !ok });
  return answer.ok ? "" : wordsOf(answer);
}

/** The number behind a figure; infinity is written as a word in JSON. */
export function figure(value: Figure | undefined): number {
  return typeof value === "number" ? value : Infinity;
}
