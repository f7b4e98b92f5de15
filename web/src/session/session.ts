/**
 * Taking part in a federation from a page: what the user interface sees of it.
 *
 * Data, training and privacy each run in a worker of their own; the session joins them with the server. Only bytes that
 * the privacy worker has written into its ledger are ever sent.
 */
import type { Doing } from "../learning/training.ts";
import type { BudgetState, Choice, LedgerEntry } from "../privacy/terms.ts";
import type { DataSource, DataSummary } from "../workers/data.ts";

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
  /** whether the browser promises to keep the ledger; else it may clear it */
  | { type: "storage"; lasting: boolean }
  | { type: "joined"; client: number; round: number; rounds: number; resumed: boolean }
  | { type: "round"; round: number; rounds: number }
  | { type: "progress"; round: number; step: number; steps: number; doing: Doing }
  | { type: "trained"; round: number; seconds: number; samplesPerSecond: number; loss: number | null }
  | { type: "released"; round: number; bytes: number; replayed: boolean }
  | { type: "declined"; round: number; reason: string }
  | { type: "refused"; reason: string; final: boolean }
  | { type: "accuracy"; round: number; accuracy: number; loss: number | null }
  /** who is here; `places` are all that there are, `startsIn` the seconds until the first round where a countdown runs */
  | { type: "participants"; connected: number; needed: number; places: number | null; startsIn: number | null }
  /** a newer model has come; `parameters` begin with those of the task's model */
  | { type: "model"; round: number; parameters: Float32Array }
  /**
   * What this page reports, without its noise and as the server reads it: for the person's eyes alone. `clear` is null where
   * the report was never without noise. It is told once, recorded nowhere, and `clear` is in no message.
   */
  | { type: "noise"; round: number; clear: Float32Array | null; sent: Float32Array }
  | { type: "budget"; budget: BudgetState }
  | { type: "offline"; retryInSeconds: number; reason: string }
  | { type: "online" }
  | { type: "ended"; reason: "finished" | "left" }
  | { type: "error"; message: string; final: boolean };

export interface Prediction {
  /** probabilities, in the order of the task's classes */
  probabilities: number[];
  best: number;
  /** rounds that the model has learnt in */
  round?: number;
}

/** What a model can be asked about: a picture (grey values 0 to 255, row by row), or one line of a table. */
export type Example = { width: number; height: number; pixels: Uint8Array } | { values: ArrayLike<number> };

export interface SessionOptions {
  /** where the server is, such as location.origin */
  server: string;
  federation: string;
  token?: string;
  /** the key that signs plans, where the invitation's link names it */
  key?: string;
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
  /**
   * Leaves for good: the ledger stays in the browser. Where the server cannot be told now, it is told when it can be reached
   * again, from this page or the next.
   */
  leave(): Promise<void>;
  /**
   * Ends this page's part, its workers and their hold on the ledger, and nothing is heard of it any more; its place in the
   * federation stays, as if the page had been closed.
   */
  close(): void;
  /** Calls back for every event from now on; the result ends that. */
  subscribe(listener: (event: SessionEvent) => void): () => void;
  /** Classifies an example with the newest model. */
  predict(example: Example): Promise<Prediction>;
  ledger(): Promise<LedgerEntry[]>;
  budget(): Promise<BudgetState>;
}

export type { Adjacency, Basis, Budget, BudgetState, Choice, LedgerEntry } from "../privacy/terms.ts";
export type { DataSource, DataSummary, Drawing } from "../workers/data.ts";
export type { FirstLine } from "../workers/table.ts";
export { giveBackPlaces, hasPlacesToGiveBack, openSession } from "./open.ts";
export { checkData, tableColumns, planFor, pageBuild, capabilities, publicExamples, readRecord } from "./before.ts";
export type { Outlook, Question, Capabilities, PublicExample } from "./before.ts";
export { openLeaks, type Leaks, type PictureGuess, type PictureLeak, type Reports } from "./leak.ts";
export { openPredictor, type Predictor } from "./predictor.ts";
export type { OwnRecord, RecordLine } from "../privacy/record.ts";
