/** What the server says about its federations, as far as the pages show it. The protocol is docs/web-protocol.md. */

export type Figure = number | "infinite" | "infinity" | null;

export interface Summary {
  name: string;
  title: string;
  summary: string;
  operator: string;
  method: string;
  clients: number;
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
  /** whether the server has public examples for those who only want to try */
  sample: boolean;
}

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
  accuracy: number | null;
}

export interface Task {
  federation: string;
  title: string;
  summary: string;
  paper?: string | null;
  method: string;
  clients: number;
  rounds: { count: number; quorum: number; deadline: number | null };
  input: { shape: number[]; kind: "image" | "features" };
  classes: string[];
  model: { name: string; size: number };
  training: { kind: "plain" | "private" };
  upload: { what: "weights" | "update"; values: number; samples: object | null };
  strengths: Strength[];
  budget: SuggestedBudget | null;
  choices: StrongerChoice[];
}

export interface Participant {
  client: number;
  kind: "page" | "native";
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

export interface Detail extends Summary {
  history: RoundEntry[];
  statement: ServerStatement | null;
  task: Task;
  /** null for those to whom the server does not show single participants */
  live: Live | null;
}

/** An answer that is no answer, with a sentence for the person. */
export class Unreachable extends Error {}

async function get<T>(path: string): Promise<T> {
  let response: Response;
  try {
    response = await fetch(path, { headers: { Accept: "application/json" } });
  } catch {
    throw new Unreachable(
      "The server cannot be reached. Check your connection; this page tries again when you reload it.",
    );
  }
  const body: unknown = await response.json().catch(() => null);
  if (!response.ok) throw new Unreachable(wordsOf(response.status, body));
  return body as T;
}

function wordsOf(status: number, body: unknown): string {
  const said = body !== null && typeof body === "object" && "error" in body ? String(body.error) : "";
  return said || `The server answered ${status}. Try again in a moment.`;
}

const at = (name: string): string => `/api/federations/${encodeURIComponent(name)}`;

export const federations = (): Promise<Summary[]> => get("/api/federations");
export const federation = (name: string): Promise<Detail> => get(at(name));
export const address = at;

/** How news come: as they happen, by asking now and then, or not at all for the moment. */
export type Reach = "told" | "asking" | "lost";

export interface Listeners {
  summary?: (summary: Summary) => void;
  round?: (entry: RoundEntry) => void;
  live?: (live: Live) => void;
  /** `why` is the server's sentence where it tells this page nothing by itself */
  reach?: (reach: Reach, why: string) => void;
}

/** Seconds between two questions of a page that is not told by itself. */
export const ASKING = 15;

/**
 * What happens to a federation. The browser connects again by itself where the network fails, but not where the server has
 * too many who watch: then this asks now and then, until there is room.
 */
export function follow(name: string, listeners: Listeners): () => void {
  let stop = (): void => undefined;
  const listen = (): void => {
    const source = new EventSource(`${at(name)}/events`);
    stop = () => source.close();
    const on = <T>(event: string, listener: ((value: T) => void) | undefined): void =>
      source.addEventListener(event, (message) => listener?.(JSON.parse((message as MessageEvent<string>).data) as T));
    on("summary", listeners.summary);
    on("ended", listeners.summary);
    on("round", listeners.round);
    on("live", listeners.live);
    source.onopen = () => listeners.reach?.("told", "");
    source.onerror = () => {
      listeners.reach?.("lost", "");
      if (source.readyState === 2) stop = ask(name, listeners, () => listen()); // closed: the server said no
    };
  };
  listen();
  return () => stop();
}

/** Asks until there is room among those who are told by themselves; the result ends that. */
function ask(name: string, listeners: Listeners, room: () => void): () => void {
  let stopped = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const again = async (): Promise<void> => {
    const why = await refusal(name).catch(() => null);
    if (stopped) return;
    if (why === "") return room();
    const detail = why === null ? null : await federation(name).catch(() => null);
    if (stopped) return;
    if (detail !== null) {
      for (const entry of detail.history) listeners.round?.(entry);
      if (detail.live !== null) listeners.live?.(detail.live);
      listeners.summary?.(detail);
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
  const ended = new AbortController();
  const answer = await fetch(`${at(name)}/events`, { signal: ended.signal });
  if (!answer.ok) return wordsOf(answer.status, await answer.json().catch(() => null));
  ended.abort();
  return "";
}

/** The number behind a figure; infinity is written as a word in JSON. */
export function figure(value: Figure | undefined): number {
  return typeof value === "number" ? value : Infinity;
}
