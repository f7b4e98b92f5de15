/**
 * The privacy room: nothing leaves a page but what was randomised and written down here.
 *
 * A plan is checked against the task, the order of rounds and the budget before any record is touched; what training made
 * of it is randomised with a fresh key, and release and bytes are recorded before they are given out.
 */
import { Keystream, type Words } from "../bits/keystream.ts";
import { type Body, makeBody } from "../bits/report.ts";
import type { Summing } from "../learning/sums.ts";
import { type Plan, hex, readPlan, writeAnswer } from "../wire/frames.ts";
import { Refused } from "../wire/refusal.ts";
import { type Envelope, checkKey, isFor, isSigned, keyAfter, readEnvelope } from "../wire/signing.ts";
import { fields, flag, number, oneOf, positive } from "../wire/schema.ts";
import { ADJACENCIES, type Strength, type Task, checkPlan, readTask, stageOf, strengthOf } from "../wire/task.ts";
import { Account, type OwnRelease, checkCountable } from "./account.ts";
import { type Entry, type Kept, Ledger } from "./ledger.ts";
import { noisySums, readSums } from "./noisy_sums.ts";
import { ownReleases } from "./releases.ts";
import type { Budget, BudgetState, Choice, LedgerEntry } from "./terms.ts";

/** What to do about a plan. */
export type Ruling =
  /** train, then ask for `release` */
  | {
      kind: "train"; round: number;
      /** empty in a round without any */
      parameters: Float32Array<ArrayBuffer>;
      noise: number | null; order: Int32Array | null;
      /** how records are summed, for tasks that sum */
      summing: Summing | null;
      /** what is sent where the round is over before the report is made: that there is none */
      decline: Uint8Array<ArrayBuffer>;
    }
  /** the same bytes as before */
  | { kind: "again"; round: number; answer: Uint8Array<ArrayBuffer> }
  /** the person's budget does not allow it; the bytes say no more than that */
  | { kind: "declined"; round: number; answer: Uint8Array<ArrayBuffer>; reason: string }
  /** the server asked for what was not agreed to; it gets no answer to that plan */
  | { kind: "refused"; reason: string }
  /** the coordinator did not sign it, for this page and this step: nothing in it was looked at */
  | { kind: "unsigned"; reason: string };

export interface Identity {
  id: string;
  proof: string;
  /** the last plan answered in this federation */
  last: { round: number; digest: string } | null;
}

/** A report for its owner's eyes alone: nothing here is recorded, and `clear` is in no message. */
export interface Insight {
  /** what it says without noise; null where the noise was there before the report was made */
  clear: Float32Array | null;
  /** what the server reads in it; weights are shown by what they moved by, since everybody knows where they began */
  sent: Float32Array;
}

export interface Opening {
  task: unknown;
  choice: Choice;
  /** everything of one's own adds up; a federation's public sample is nobody's secret and counts by itself */
  own: boolean;
}

/** From where on an outlook is asked for. */
export interface Horizon {
  /** rounds that are over */
  done?: number;
  /** the federation's usual budget, for whoever has agreed to none */
  usual?: Budget;
  client?: number;
}

export interface Ahead {
  /** epsilon after each round that is still to come */
  perRound: number[];
  /** how many of them the budget pays for */
  rounds: number;
  /** epsilon told before, in `terms`, whatever is chosen now */
  before: number;
  terms: Budget;
}

/** Rooms that other tabs must not enter at the same time. */
export const LOCK = "sordino ledger";

/** In tests the key is given, so that every outgoing byte can be compared with the encoder's. */
export type FreshWords = () => Promise<Words>;

/** A plan that was ruled to be answered. */
interface Pending {
  plan: Plan;
  /** the one that `releases` were computed for: a server may give this page another number meanwhile */
  strength: Strength;
  releases: OwnRelease[];
}

interface Open {
  task: Task;
  choice: Choice;
  dataset: string;
  strength: Strength | null;
  /** this page's number */
  client: number | null;
  /** the public key that signs plans now */
  key: Uint8Array<ArrayBuffer>;
}

export class PrivacyRoom {
  readonly #ledger: Ledger;
  readonly #fresh: FreshWords;
  #open: Open | null = null;
  #pending: Pending | null = null;

  constructor(ledger: Ledger, fresh: FreshWords = () => Keystream.fresh()) {
    this.#ledger = ledger;
    this.#fresh = fresh;
  }

  /** Agrees to a task with a budget; every figure in it is checked before. */
  async open({ task: given, choice, own }: Opening): Promise<void> {
    const task = readTask(given);
    checkChoice(task, choice);
    if (!(await this.#ledger.sound())) {
      throw new Refused(
        "the ledger in this browser is not as this page wrote it, so what was spent is not known and nothing is sent: clear " +
          "this site's data if you want to begin anew, as somebody else",
      );
    }
    for (const strength of task.strengths) {
      for (const round of new Set(strength.releases.map(({ rounds }) => rounds[0]))) {
        const releases = await ownReleases(task, strength, round, choice.noise ?? null);
        checkConsent(releases, choice);
        checkCountable(releases, task.federation);
      }
    }
    const key = await this.#pinned(task);
    await this.#ledger.keepFirstBudget(task.federation, choice.budget);
    this.#open = { task, choice, dataset: datasetOf(task, own), strength: null, client: null, key };
  }

  /** The key that signs plans: the one of the task, written down with its terms when it is first agreed to. */
  async #pinned({ federation, coordinator, terms }: Task): Promise<Uint8Array<ArrayBuffer>> {
    await checkKey(coordinator);
    const known = await this.#ledger.coordinator(federation);
    if (known && known.first !== coordinator) {
      throw new Refused(
        "the server names another key for the plans of this federation than when you joined it: somebody else may stand in its " +
          "place. Ask whoever runs it; a federation with a new key needs a new name",
      );
    }
    if (known?.terms !== undefined && known.terms !== terms) {
      throw new Refused(
        "the server now says that this federation has other terms than when you joined it: nothing is answered. Ask whoever runs " +
          "it; a federation with other terms needs a new name",
      );
    }
    if (known?.terms === undefined) {
      await this.#ledger.keepCoordinator(federation, { first: coordinator, rotations: known?.rotations ?? [], terms });
    }
    return keyAfter(coordinator, known?.rotations ?? []);
  }

  /** Who this browser is in a federation (docs/web-protocol.md, Joining). */
  async identity(): Promise<Identity> {
    const { federation } = this.#opened.task;
    const secret = await this.#ledger.secret();
    const key = await crypto.subtle.importKey("raw", secret, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
    const mac = async (what: string) =>
      hex(new Uint8Array(await crypto.subtle.sign("HMAC", key, new TextEncoder().encode(`${what}\0${federation}`))));
    const last = await this.#ledger.last(federation);
    return {
      id: (await mac("sordino web id 1")).slice(0, 32),
      proof: await mac("sordino web proof 1"),
      last: last && { round: last.round, digest: last.plan.slice(0, 32) },
    };
  }

  /** The server has given this page a number, and says to which keys the first one has handed over. */
  async welcome(client: number, rotations: readonly string[] = []): Promise<void> {
    const { federation, coordinator, terms } = this.#opened.task;
    const known = (await this.#ledger.coordinator(federation))?.rotations ?? [];
    if (!known.slice(0, rotations.length).every((rotation, i) => rotation === rotations[i])) {
      throw new Refused("the server names another key for its plans than the one that this page knows: nothing is answered");
    }
    const longest = rotations.length > known.length ? rotations : known;
    const key = await keyAfter(coordinator, longest);
    if (longest !== known) await this.#ledger.keepCoordinator(federation, { first: coordinator, rotations: [...longest], terms });
    Object.assign(this.#opened, { strength: strengthOf(this.#opened.task, client), client, key });
  }

  /** Whether the coordinator signed a message, for this page and this step. */
  async isSigned(step: string, payload: Uint8Array<ArrayBuffer>): Promise<boolean> {
    return (await this.#envelope(step, payload)) !== null;
  }

  /** The envelope of a message that the coordinator signed for this page and this step; null of any other. */
  async #envelope(step: string, payload: Uint8Array<ArrayBuffer>): Promise<Envelope | null> {
    const { task, client, key } = this.#opened;
    try {
      const envelope = readEnvelope(payload);
      const agreed = envelope.federation === task.federation && hex(envelope.terms) === task.terms;
      const meant = client !== null && isFor(envelope, client) && agreed;
      return meant && (await isSigned(envelope, step, key)) ? envelope : null;
    } catch (error) {
      if (error instanceof Refused) return null;
      throw error;
    }
  }

  /** Judges a plan before any record is touched. */
  async judge(step: string, payload: Uint8Array<ArrayBuffer>): Promise<Ruling> {
    const envelope = await this.#envelope(step, payload);
    if (!envelope) return { kind: "unsigned", reason: "a plan came which the coordinator of this federation did not sign for this page, or for other terms" };
    this.#pending = null;
    try {
      return await this.#judged(step, envelope);
    } catch (error) {
      if (error instanceof Refused) return { kind: "refused", reason: error.message };
      throw error;
    }
  }

  async #judged(step: string, envelope: Envelope): Promise<Ruling> {
    const { task, choice, strength } = this.#opened;
    if (!strength) throw new Refused("a plan came before the server said which number this page has");
    const plan = await readPlan(envelope.message);
    checkPlan(task, step, plan);
    const { round } = plan;
    if (round !== envelope.round || hex(plan.hash.subarray(0, 16)) !== hex(envelope.plan)) throw new Refused("a plan came in an envelope of another one");
    const before = await this.#ledger.find(task.federation, round);
    if (before) {
      if (before.plan !== hex(plan.hash)) throw new Refused(`round ${round} was answered before, and this is another plan for it`);
      if (before.answer === null) throw new Refused(`round ${round} was answered before, and later ones since`);
      return { kind: "again", round, answer: before.answer };
    }
    const last = await this.#ledger.last(task.federation);
    if (last && last.round > round) throw new Refused(`round ${round} came after round ${last.round} was answered`);
    const releases = await ownReleases(task, strength, round, choice.noise ?? null, plan);
    const account = releases.reduce((sum, release) => sum.after(release, task.federation), await this.#account());
    if (!account.permits && !(choice.acceptUnbounded && releases.every(unbounded))) {
      const reason = "your budget does not allow another report";
      return { kind: "declined", round, answer: writeAnswer(plan, null), reason };
    }
    this.#pending = { plan, strength, releases };
    const parameters = Float32Array.from(plan.arrays.get("parameters")?.values ?? []);
    const { order } = await this.#ledger.kept(task.federation);
    const summing = summingOf(strength, plan);
    return { kind: "train", round, parameters, noise: choice.noise ?? null, order, summing, decline: writeAnswer(plan, null) };
  }

  /**
   * Randomises what training made (null: nothing, and then "no change" is reported, or the sums of no records) and writes it
   * down; the bytes that come back may be sent. The number of records and the order of taking them up stay here.
   */
  async release(
    trained: Float32Array | Float64Array | null, records: number, order: Int32Array | null,
  ): Promise<{ answer: Uint8Array<ArrayBuffer>; index: number; insight: Insight }> {
    const pending = this.#taken();
    const kept = await this.#ledger.kept(this.#opened.task.federation);
    const { body, announced, insight } = await this.#body(pending.plan, pending.strength, trained, records, kept.announced);
    const { answer, index } = await this.#record(pending, body, { announced: announced ?? kept.announced, order: order ?? kept.order });
    return { answer: answer!, index, insight };
  }

  /** Writes a round without a report down as if there had been one; the bytes say that there is none, and no other answer to it ever leaves. */
  async forgo(): Promise<{ answer: Uint8Array<ArrayBuffer>; index: number }> {
    const pending = this.#taken();
    const { answer, index } = await this.#record(pending, null, await this.#ledger.kept(this.#opened.task.federation));
    return { answer: answer!, index };
  }

  #taken(): Pending {
    const pending = this.#pending;
    if (!pending) throw new Error("nothing was asked for: judge a plan first");
    this.#pending = null;
    return pending;
  }

  #record({ plan, releases }: Pending, body: Uint8Array | null, kept: Kept): Promise<Entry> {
    const { task, dataset } = this.#opened;
    const answer = writeAnswer(plan, body);
    return this.#ledger.record({ dataset, federation: task.federation, round: plan.round, plan: hex(plan.hash), releases, answer, time: Date.now() }, kept);
  }

  async #body(plan: Plan, { mechanism }: Strength, trained: Float32Array | Float64Array | null, records: number, announced: number | null): Promise<Omit<Body, "read"> & { insight: Insight }> {
    const { task } = this.#opened;
    const words = await this.#fresh();
    if (mechanism.name === "noisy-sums") {
      const sums = trained && Float64Array.from(trained);
      const stage = stageOf(mechanism, plan.round);
      const body = await noisySums(stage, sums, words);
      const clear = sums && Float32Array.from(sums);
      return { body, announced: null, insight: { clear, sent: Float32Array.from(readSums(stage, body)) } };
    }
    const values = vectorOf(task, plan, trained && Float32Array.from(trained));
    const made = await makeBody(task, mechanism, plan, values, records, announced, words);
    const start = task.upload.what === "weights" ? plan.arrays.get("parameters")!.values : new Float32Array(values.length);
    const moved = (after: Float32Array) => after.map((value, i) => value - start[i]!);
    const clear = task.training.kind === "private" ? null : moved(values);
    return { body: made.body, announced: made.announced, insight: { clear, sent: moved(made.read) } };
  }

  /** The bytes of a round have been handed to the network, or the server says that it has them. */
  async mark(round: number, sent: "sent" | "received"): Promise<void> {
    const entry = await this.#ledger.find(this.#opened.task.federation, round);
    if (entry) await this.#ledger.mark(entry.index, sent);
  }

  async budget(): Promise<BudgetState> {
    const { task, choice, strength } = this.#opened;
    const account = await this.#account();
    const { limit, delta, basis, adjacency } = choice.budget;
    const next = ((await this.#ledger.last(task.federation))?.round ?? 0) + 1;
    let afterNext: number | null = null;
    if (strength && next <= task.rounds.count) {
      const releases = await ownReleases(task, strength, next, choice.noise ?? null);
      afterNext = releases.reduce((sum, release) => sum.after(release, task.federation), account).spent;
    }
    const releases = (await this.#entries()).reduce((sum, entry) => sum + entry.releases.length, 0);
    return { spent: account.spent, limit, delta, basis, adjacency, adversary: "server", afterNext, releases };
  }

  async ledger(): Promise<LedgerEntry[]> {
    const { choice, dataset } = this.#opened;
    let account = Account.opening(choice.budget);
    return (await this.#ledger.entries()).map((entry) => {
      if (entry.dataset === dataset) account = entry.releases.reduce((sum, release) => sum.after(release, entry.federation), account);
      const { index, federation, round, bytes, time, sent, head, releases } = entry;
      return { index, federation, round, bytes, time, sent, head, what: releases.map(({ what }) => what), spentAfter: account.spent };
    });
  }

  /**
   * Epsilon after each report that is still to come in a task with a choice, on top of what this browser has told already.
   * `done` rounds are over. What was told before is counted in the terms of the first agreement, else in `usual` ones:
   * the choice decides the order of the count, and with it the figure.
   */
  async outlook({ task: given, choice, own }: Opening, { done = 0, usual = choice.budget, client = 0 }: Horizon = {}): Promise<Ahead> {
    const task = readTask(given);
    const dataset = datasetOf(task, own);
    let account = await this.#account({ choice, dataset });
    const terms = (await this.#ledger.firstBudget(task.federation)) ?? usual;
    const before = (await this.#account({ choice: { budget: terms }, dataset })).spent;
    const strength = strengthOf(task, client);
    const last = (await this.#ledger.last(task.federation))?.round ?? 0;
    const perRound: number[] = [];
    let rounds = 0;
    for (let round = Math.max(done, last) + 1; round <= task.rounds.count; round += 1) {
      for (const release of await ownReleases(task, strength, round, choice.noise ?? null)) {
        account = account.after(release, task.federation);
      }
      perRound.push(account.spent);
      if (account.permits) rounds = perRound.length;
    }
    return { perRound, rounds, before, terms };
  }

  get #opened(): Open {
    if (!this.#open) throw new Error("no task was agreed to");
    return this.#open;
  }

  async #entries(): Promise<Entry[]> {
    return (await this.#ledger.entries()).filter(({ dataset }) => dataset === this.#opened.dataset);
  }

  async #account(given?: { choice: Choice; dataset: string }): Promise<Account> {
    const { choice, dataset } = given ?? this.#opened;
    const entries = (await this.#ledger.entries()).filter((entry) => entry.dataset === dataset);
    return entries.reduce(
      (sum, { federation, releases }) => releases.reduce((all, release) => all.after(release, federation), sum),
      Account.opening(choice.budget),
    );
  }
}

/** Whose figures add up. */
function datasetOf({ federation }: Task, own: boolean): string {
  return own ? "own" : `sample of ${federation}`;
}

/** How long a record's whole vectors may be, and what a plan whitens records by; null for tasks that do not sum. */
function summingOf({ mechanism }: Strength, { arrays }: Plan): Summing | null {
  if (mechanism.name !== "noisy-sums") return null;
  const [left, centre] = [arrays.get("left"), arrays.get("centre")];
  const whitening = left && centre ? { left: left.values, centre: centre.values } : null;
  return { limits: mechanism.limits, whitening };
}

/** The parameters after training, or what they moved by; without training, nothing has changed. */
function vectorOf(task: Task, plan: Plan, trained: Float32Array | null): Float32Array {
  if (trained === null && task.training.kind === "private") throw new Error("private training hands in its noise at least");
  const start = plan.arrays.get("parameters")!.values;
  const after = trained ?? start;
  if (after.length !== start.length) throw new Refused(`training gave ${after.length} values where ${start.length} were asked for`);
  if (task.upload.what === "weights") return after;
  const moved = after.map((value, i) => value - start[i]!);
  // A plan may make the difference overflow: to fail then would tell of the records, and nothing would write it down.
  return moved.every(Number.isFinite) ? moved : new Float32Array(start.length);
}

/** A choice as it comes from the page, or from what the page kept over a reload. */
const CHOICE = fields(
  { budget: fields({ limit: positive, delta: number(0, 1 - 2 ** -53), basis: oneOf("proven", "claimed"), adjacency: oneOf(...ADJACENCIES) }) },
  { noise: positive, acceptClaimed: flag, acceptUnbounded: flag },
);

function checkChoice(task: Task, choice: Choice): void {
  CHOICE(choice, "your choice");
  const { budget, noise, acceptClaimed } = choice;
  if (budget.basis === "claimed" && !acceptClaimed) {
    throw new Refused("this budget counts figures that are claimed and proven by nothing: agree to that, or choose proven ones");
  }
  if (noise !== undefined && task.training.kind !== "private") throw new Refused("this federation leaves no choice of noise");
}

/** What leaves without any bound needs the person's word. */
function checkConsent(releases: OwnRelease[], choice: Choice): void {
  for (const release of releases) {
    if (unbounded(release) && release.claimed === null && !choice.acceptUnbounded) {
      throw new Refused(`"${release.what}" would leave this page without any protection: agree to that, or choose another federation`);
    }
  }
}

function unbounded({ guarantees }: OwnRelease): boolean {
  return guarantees.every(({ loss }) => loss.type === "Infinite");
}
