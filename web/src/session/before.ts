/** What a person can know before joining: the federations there are, what the data holds, what the rounds will cost. */
import { Ledger } from "../privacy/ledger.ts";
import { PrivacyRoom } from "../privacy/privacy.ts";
import { type OwnRecord, recordOf } from "../privacy/record.ts";
import { fetched, readable } from "../wire/fetching.ts";
import { readTask } from "../wire/task.ts";
import { columnsOf, readSample } from "../workers/data.ts";
import type { FirstLine, TableColumns } from "../workers/table.ts";
import { Marker } from "./marker.ts";
import { dataRoom } from "./rooms.ts";
import type { Budget, DataSource, DataSummary } from "./session.ts";

/** What a budget allows in a federation, by the page's own arithmetic. */
export interface Outlook {
  /** rounds that the budget pays for, at most those that are left */
  rounds: number;
  /** rounds of the federation that are still to come for this browser */
  left: number;
  /** epsilon after each round that is left */
  perRound: number[];
  /** epsilon that was spent in this browser at this address before, in `terms`: the same whatever is chosen now */
  before: number;
  terms: Budget;
}

export interface Capabilities {
  secure: boolean;
  storage: boolean;
  locks: boolean;
  threads: boolean;
  webgpu: boolean;
  /** what is missing and what that means, in sentences for the person; empty if nothing is */
  notes: string[];
  /** whether taking part is possible at all */
  able: boolean;
}

/** Reads the data as a session would, to show what is in it; nothing is kept. */
export async function checkData(data: DataSource, task: unknown, sampleFrom?: string): Promise<DataSummary> {
  const agreed = readTask(task);
  const room = dataRoom();
  try {
    const sample = sampleFrom === undefined ? null : { server: sampleFrom, federation: agreed.name ?? agreed.federation, client: 0 };
    return (await room.remote.load(data, agreed, sample)).summary;
  } finally {
    room.close();
  }
}

/** The columns of a table, for the person to say which of them is the class. */
export async function tableColumns(file: File, task: unknown, first?: FirstLine): Promise<TableColumns> {
  return columnsOf(file, readTask(task), first);
}

/** An example of the public sample, in raw values. */
export interface PublicExample {
  values: Float32Array;
  label: number;
}

/** Some examples of a federation's public sample, to look at: of each class in turn, up to `count`. */
export async function publicExamples(server: string, federation: string, task: unknown, count: number): Promise<PublicExample[]> {
  const { x, y } = await readSample({ server, federation, client: 0 }, readTask(task));
  return turns([...y]).slice(0, count).map((at) => ({ values: x.slice((at * x.length) / y.length, ((at + 1) * x.length) / y.length), label: y[at]! }));
}

/** Positions of labels: the first of each class, in the order of classes, then the second of each, and so on. */
export function turns(labels: readonly number[]): number[] {
  const seen = new Map<number, number>();
  return labels
    .map((label, at) => {
      const turn = seen.get(label) ?? 0;
      seen.set(label, turn + 1);
      return { at, turn, label };
    })
    .sort((a, b) => a.turn - b.turn || a.label - b.label)
    .map(({ at }) => at);
}

/** What an outlook is asked for. */
export interface Question {
  budget: Budget;
  noise?: number | undefined;
  /** one's own data, or the federation's sample: each is counted by itself */
  own: boolean;
  /** rounds that are over */
  done: number;
  /** the federation's usual budget: what was told before is stated in it */
  usual: Budget;
}

/** How far a budget reaches, by the page's own arithmetic; includes what this browser has told already. */
export async function planFor(task: unknown, { budget, noise, own, done, usual }: Question): Promise<Outlook> {
  const ledger = await Ledger.open();
  try {
    const choice = { budget, acceptClaimed: true, acceptUnbounded: true, ...(noise === undefined ? {} : { noise }) };
    new Marker().check((await ledger.entries()).length);
    const ahead = await new PrivacyRoom(ledger).outlook({ task, choice, own }, { done, usual });
    return { ...ahead, left: ahead.perRound.length };
  } finally {
    ledger.close();
  }
}

/** Everything that left this browser at this address, whether or not a server can be reached or another tab takes part. */
export async function readRecord(): Promise<OwnRecord> {
  const ledger = await Ledger.open();
  try {
    const record = await recordOf(ledger);
    new Marker().check(record.lines.length);
    return record;
  } finally {
    ledger.close();
  }
}

/** The hash over all files of this page, and of each of them; null where the page was not built (in development). */
export async function pageBuild(): Promise<{ hash: string; files: Record<string, string> } | null> {
  const answer = await fetched("build.json").catch(() => null);
  return answer?.ok ? readable(answer) : null;
}

/** What this browser lets the page do. */
export async function capabilities(): Promise<Capabilities> {
  const secure = globalThis.isSecureContext === true && typeof crypto?.subtle !== "undefined";
  const storage = await Ledger.open().then((ledger) => (ledger.close(), true), () => false);
  const locks = "locks" in navigator;
  const workers = typeof Worker !== "undefined";
  const threads = typeof SharedArrayBuffer !== "undefined" && globalThis.crossOriginIsolated === true;
  const webgpu = "gpu" in navigator;
  const missing: string[] = [];
  if (!secure) missing.push("This page was not opened over HTTPS (or on this very machine), so the browser gives it no safe randomness. Ask for an address that begins with https.");
  if (!storage) missing.push("This browser lets the page store nothing, so your budget could not be remembered. Allow site data, or leave private browsing.");
  if (secure && !locks) missing.push("This browser cannot keep two tabs apart. Use a newer one.");
  if (!workers) missing.push("This browser has no web workers. Use a newer one.");
  const slower = threads ? [] : ["Training will be slower: this browser or this address does not allow several threads."];
  const able = missing.length === 0;
  return { secure, storage, locks, threads, webgpu, able, notes: able ? slower : missing };
}
