/**
 * Taking part in a federation from a page: what the user interface sees of it.
 *
 * Data, training and privacy each run in a worker of their own; the session joins them with the server. Only bytes that
 * the privacy worker has written into its ledger are ever sent.
 */

/** What a person can bring. Nothing of it leaves the page. */
export type DataSource =
  /** the federation's own public sample; the server says which part */
  | { kind: "sample" }
  /** pictures, sorted by class by whoever chose them */
  | { kind: "images"; classes: { label: number; files: File[] }[] }
  /** a table: numbers in columns, the class in the column named (the last one if none is) */
  | { kind: "csv"; file: File; labelColumn?: string }
  /** pictures drawn in the page: grey values 0 (background) to 255, row by row, of the given size */
  | { kind: "drawings"; drawings: Drawing[] };

export interface Drawing {
  label: number;
  width: number;
  height: number;
  pixels: Uint8Array;
}

/** What was found in the data, for the person alone. */
export interface DataSummary {
  records: number;
  /** how many of each class, in the order of the task's classes */
  perClass: number[];
  /** sentences for the person: what was skipped, and why */
  notes: string[];
}

/** What the person decided. `limit` is the budget that the page's ledger enforces: never exceeded, in all rounds together. */
export interface Choice {
  budget: Budget;
  /** for tasks with `choices`: a larger noise multiplier than the task's own; nobody is told */
  noise?: number;
  /** the person has read that a claimed figure is proven by nothing, and wants it counted nevertheless */
  acceptClaimed?: boolean;
  /** the person has read what leaves without any bound, and allows it (see `Task.releases`) */
  acceptUnbounded?: boolean;
}

export type Basis = "proven" | "claimed";
export type Adjacency = "coordinate" | "label" | "record-replace" | "record-add-remove" | "client";

export interface Budget {
  limit: number;
  delta: number;
  basis: Basis;
  adjacency: Adjacency;
}

/** Where the budget stands. An epsilon is never shown without the other fields. */
export interface BudgetState {
  spent: number;
  limit: number;
  delta: number;
  basis: Basis;
  adjacency: Adjacency;
  adversary: "server";
  /** epsilon spent after one more round such as the next one; the page declines if it exceeds the limit */
  afterNext: number | null;
  releases: number;
}

/** One line of the ledger: what left the page. */
export interface LedgerEntry {
  /** position in the ledger, from 0 */
  index: number;
  federation: string;
  round: number;
  what: string[];
  bytes: number;
  /** when, in milliseconds since 1970 */
  time: number;
  spentAfter: number;
  sent: "kept" | "sent" | "received";
  /** SHA-256 over this entry and all before it, in hexadecimal */
  head: string;
}

export type SessionState =
  | "new" // made, not started
  | "preparing" // data is being read, training is being set up
  | "waiting" // joined; the server has not asked for anything
  | "training"
  | "randomising" // noise is added, the ledger is written
  | "sending"
  | "paused" // by the person
  | "offline" // trying to reach the server again
  | "declined" // the budget is spent: joined, but every plan is declined
  | "ended" // the federation is over
  | "left" // by the person
  | "failed"; // see the event `error` or `refused`

export type SessionEvent =
  | { type: "state"; state: SessionState }
  | { type: "data"; summary: DataSummary }
  /** which means of computing was found; `notes` are sentences for the person */
  | { type: "device"; device: "script" | "wasm" | "webgpu"; threads: number; notes: string[] }
  | { type: "joined"; client: number; round: number; rounds: number; resumed: boolean }
  | { type: "round"; round: number; rounds: number }
  | { type: "progress"; round: number; step: number; steps: number }
  | { type: "trained"; round: number; seconds: number; samplesPerSecond: number; loss: number | null }
  | { type: "released"; round: number; bytes: number; replayed: boolean }
  | { type: "declined"; round: number; reason: string }
  | { type: "refused"; reason: string; final: boolean }
  | { type: "accuracy"; round: number; accuracy: number; loss: number | null }
  | { type: "participants"; connected: number; needed: number }
  | { type: "budget"; budget: BudgetState }
  | { type: "offline"; retryInSeconds: number; reason: string }
  | { type: "online" }
  | { type: "ended"; reason: "finished" | "left" | "closed" }
  | { type: "error"; message: string; final: boolean };

export interface Prediction {
  /** probabilities, in the order of the task's classes */
  probabilities: number[];
  best: number;
}

export interface SessionOptions {
  /** where the server is, such as location.origin */
  server: string;
  federation: string;
  token?: string;
  data: DataSource;
  choice: Choice;
  /** the task as the person was shown it; with another one on the server nothing begins */
  task: unknown;
}

export interface Session {
  readonly state: SessionState;
  readonly federation: string;
  /** Everything from the data on; comes back when it is joined or refused. */
  start(): Promise<void>;
  /** No more plans are answered until `start`; what is being computed is thrown away, nothing of it has left. */
  pause(): void;
  /** Leaves for good: the ledger stays in the browser. */
  leave(): Promise<void>;
  /** Calls back for every event from now on; the result ends that. */
  subscribe(listener: (event: SessionEvent) => void): () => void;
  /** What leaves the page and what that protects, in the words of the server, with the page's own figures. */
  statement(): Promise<Statement>;
  /** Classifies a picture (grey values 0 to 255, row by row) with the newest model that the page has seen. */
  predict(picture: { width: number; height: number; pixels: Uint8Array }): Promise<Prediction>;
  ledger(): Promise<LedgerEntry[]>;
  budget(): Promise<BudgetState>;
}

/** The server's statement as it stands in /api/federations/NAME, and what this page has counted itself. */
export interface Statement {
  server: unknown;
  page: BudgetState & { sentences: string[] };
}

export { openSession } from "./open.ts";
export { checkData, planFor, pageBuild, capabilities } from "./before.ts";
export type { Outlook, Capabilities } from "./before.ts";
