/** What a person decides about their privacy, and what the page's ledger says to them. */

/** What the person decided. `limit` is the budget that the page's ledger enforces: never exceeded, in all rounds together. */
export interface Choice {
  budget: Budget;
  /** for tasks with `choices`: a larger noise multiplier than the task's own; public, since one report's spread shows it */
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
