/** The record of a browser: every report of every federation, in terms that no later choice changes, and how to check it. */
import { ADJACENCIES } from "../wire/task.ts";
import { Account, adjacencyOf } from "./account.ts";
import type { Entry, Ledger } from "./ledger.ts";
import type { Adjacency, Budget } from "./terms.ts";

/** One report: its line in the ledger without the bytes. */
export interface RecordLine extends Omit<Entry, "answer"> {
  /** epsilon of everything told so far of the same examples, in `terms`; null where nothing bounds it */
  epsilon: number | null;
  /** those of the first agreement with this federation */
  terms: Budget;
}

export interface OwnRecord {
  lines: RecordLine[];
  /** head of the last line: it stands for all of them */
  head: string | null;
  /** whether every head is that of its lines */
  sound: boolean;
}

export async function recordOf(ledger: Ledger): Promise<OwnRecord> {
  const entries = await ledger.entries();
  const federations = [...new Set(entries.map(({ federation }) => federation))];
  const terms = new Map<string, Budget>();
  for (const name of federations) {
    terms.set(name, (await ledger.firstBudget(name)) ?? budgetOf(entries.filter(({ federation }) => federation === name)));
  }
  const lines = [...new Set(entries.map(({ dataset }) => dataset))]
    .flatMap((name) => linesOf(entries.filter(({ dataset }) => dataset === name), terms))
    .sort((a, b) => a.index - b.index);
  return { lines, head: lines.at(-1)?.head ?? null, sound: await ledger.sound() };
}

/** Lines of one data set: whatever is told of it counts in the terms of every federation that it was told to. */
function linesOf(entries: readonly Entry[], terms: ReadonlyMap<string, Budget>): RecordLine[] {
  const accounts = new Map<string, Account | null>(entries.map(({ federation }) => [federation, Account.opening(terms.get(federation)!)]));
  return entries.map(({ answer: _, ...entry }) => {
    for (const [name, account] of accounts) accounts.set(name, account && counted(account, entry));
    const spent = accounts.get(entry.federation)?.spent ?? Infinity;
    return { ...entry, epsilon: Number.isFinite(spent) ? spent : null, terms: terms.get(entry.federation)! };
  });
}

/** The account after an entry; null where an earlier page wrote figures down that cannot be counted. */
function counted(account: Account, { federation, releases }: Pick<Entry, "federation" | "releases">): Account | null {
  try {
    return releases.reduce((sum, release) => sum.after(release, federation), account);
  } catch {
    return null;
  }
}

/** Terms for what an earlier page wrote down, which kept no budget: the strongest change that all of it has a guarantee for. */
function budgetOf(entries: readonly Entry[]): Budget {
  const guaranteed = (kind: Adjacency): boolean =>
    entries.every(({ releases }) =>
      releases.every(({ guarantees }) =>
        guarantees.some(({ adversary, adjacency, loss }) => adversary === "server" && adjacencyOf(adjacency) === kind && loss.type !== "Infinite"),
      ),
    );
  return { limit: 4, delta: 1e-5, basis: "proven", adjacency: ADJACENCIES.find(guaranteed) ?? "client" };
}
