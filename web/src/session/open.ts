/** One page's part in one federation: the connection, and the order of things between the three rooms. */
import type { Job, Outcome } from "../learning/room.ts";
import type { Progress } from "../learning/training.ts";
import type { Ruling } from "../privacy/privacy.ts";
import { fetched, read } from "../wire/fetching.ts";
import { WHAT, canonical, hex, isReport, readRequest, writeResponse } from "../wire/frames.ts";
import { Refused, STOPPED, wordsOf } from "../wire/refusal.ts";
import { type Task, readTask } from "../wire/task.ts";
import { type Farewell, Farewells, sayWhenPossible } from "./farewell.ts";
import { type Closed, Line, type Places, type Welcome, placesOf } from "./line.ts";
import { Marker } from "./marker.ts";
import { readModel, recordOf } from "./predictor.ts";
import { type Rooms, openRooms } from "./rooms.ts";
import type {
  BudgetState, Example, LedgerEntry, Prediction, Session, SessionEvent, SessionOptions, SessionState,
} from "./session.ts";

/** What a session is made of; tests bring their own. */
export interface Parts {
  rooms: (onStep: Progress) => Rooms;
  fetch: typeof fetch;
  socket: (url: string, protocols: string[]) => WebSocket;
  farewells: Pick<Farewells, "keep" | "drop">;
  marker: Pick<Marker, "note" | "check">;
  /** waiting times are multiplied by this */
  pace: number;
}

const socket: Parts["socket"] = (url, protocols) => new WebSocket(url, protocols);
const farewells = new Farewells(socket);
const REAL: Parts = { rooms: openRooms, fetch: (...given) => fetch(...given), socket, farewells, marker: new Marker(), pace: 1 };

export function openSession(options: SessionOptions, parts: Parts = REAL): Session {
  return new PageSession(options, parts);
}

/** Gives back, from now on, places that were left without the server hearing of it. */
export function giveBackPlaces(): void {
  sayWhenPossible(farewells);
}

/** Whether the server has yet to hear that somebody left. */
export function hasPlacesToGiveBack(): boolean {
  return farewells.kept.length > 0;
}

/** What the server hears instead of a report: why, in words without figures, since figures would tell of the records. */
const TOLD = {
  declined: "the participant's budget does not allow it",
  refused: "the plan was not agreed to",
  late: "the round was over",
  unsigned: "the coordinator that the owner agreed to did not sign this, for this client and this step",
  unable: "the participant's page could not train",
} as const;

/** milliseconds that a person has to answer whether the browser may keep the ledger */
const PATIENCE = 10_000;

const ENDED: readonly SessionState[] = ["ended", "left", "failed"];

class PageSession implements Session {
  readonly federation: string;
  readonly #options: SessionOptions;
  readonly #parts: Parts;
  readonly #places: Places;
  readonly #rooms: Rooms;
  readonly #listeners = new Set<(event: SessionEvent) => void>();
  #state: SessionState = "new";
  #task: Task | null = null;
  #digest = "";
  #line: Line | null = null;
  #client: number | null = null;
  /** how to give back the place that this page has; null before it has asked for one */
  #farewell: Farewell | null = null;
  #records = 0;
  /** the last whole round that the server spoke of */
  #round = 0;
  #accuracyOf = -1;
  #training: number | null = null;
  /** `last` where it was fetched after the end: there is no newer one */
  #model: { round: number; parameters: Float32Array; last: boolean } | null = null;
  #fetching: { last: boolean; done: Promise<void> } | null = null;
  #plan: Uint8Array<ArrayBuffer> | null = null;
  #step = "";
  #turn: Promise<void> = Promise.resolve();
  /** whether what the newest welcome asks for is there (the sample, for one); false where its line was lost before */
  #ready: Promise<boolean> = Promise.resolve(true);
  #welcomes = 0;
  /** ends what waits for the newest welcome */
  #supersede: () => void = () => {};
  /** connections in a row that were lost, or did not come about */
  #missed = 0;
  /** ends the wait for a welcome that will not come any more */
  #parted: () => void = () => {};

  constructor(options: SessionOptions, parts: Parts) {
    this.#options = options;
    this.#parts = parts;
    this.federation = options.federation;
    this.#places = placesOf(options.server, options.federation);
    this.#rooms = parts.rooms((step, steps, doing = "training") => {
      if (this.#training !== null && this.#state === "training") this.#tell({ type: "progress", round: this.#training, step, steps, doing });
    });
  }

  get state(): SessionState {
    return this.#state;
  }

  subscribe(listener: (event: SessionEvent) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  async start(): Promise<void> {
    if (this.#state === "paused") return this.#resume();
    if (this.#state !== "new") return undefined;
    this.#become("preparing");
    try {
      await this.#prepare();
      if (!ENDED.includes(this.#state)) await this.#join(); // the person may have left meanwhile
    } catch (error) {
      this.#fail(error);
      throw error;
    }
    return undefined;
  }

  pause(): void {
    if (this.#state === "new" || this.#state === "paused" || ENDED.includes(this.#state)) return;
    this.#become("paused");
    this.#line?.say({ type: "pause" });
    this.#stop();
  }

  #resume(): void {
    this.#become(this.#client === null ? "preparing" : this.#line?.connected ? "waiting" : "offline");
    this.#line?.say({ type: "resume" });
    const plan = this.#plan;
    if (plan) this.#enqueue(this.#step, plan);
  }

  async leave(): Promise<void> {
    if (ENDED.includes(this.#state)) return;
    const { farewells } = this.#parts;
    const farewell = this.#farewell;
    if (farewell) farewells.keep(farewell); // first: the page may be closed while it waits for the server
    const heard = this.#line?.leave();
    this.#end("left", "left");
    if (farewell && (await heard)) farewells.drop(farewell.url);
  }

  close(): void {
    this.#listeners.clear();
    if (!ENDED.includes(this.#state)) {
      this.#shut("left");
      this.#parted();
    }
    this.#rooms.close();
  }

  async ledger(): Promise<LedgerEntry[]> {
    return this.#rooms.privacy.ledger();
  }

  async budget(): Promise<BudgetState> {
    return this.#rooms.privacy.budget();
  }

  async predict(example: Example): Promise<Prediction> {
    if (!this.#task) throw new Refused("there is no model yet: it comes with the first round");
    const { round, parameters } = await this.#newestModel();
    const probabilities = await this.#rooms.training.predict(parameters, recordOf(example, this.#task));
    return { probabilities, best: probabilities.indexOf(Math.max(...probabilities)), round };
  }

  /** The model after the last whole round, from the server; else that of the last plan. */
  async #newestModel(): Promise<{ round: number; parameters: Float32Array }> {
    const over = ENDED.includes(this.#state);
    if (this.#model && this.#model.round >= this.#round && (this.#model.last || !over)) return this.#model;
    if (this.#fetching?.last !== over) this.#fetching = { last: over, done: this.#fetchModel(over) }; // one from before the end may be too old
    const { done } = this.#fetching;
    await done;
    if (this.#fetching?.done === done) this.#fetching = null;
    if (!this.#model) throw new Refused("there is no model yet: wait for the first round");
    return this.#model;
  }

  async #fetchModel(last: boolean): Promise<void> {
    const answer = await fetched(this.#places.model, { fetch: this.#parts.fetch }).catch(() => null);
    const parameters = answer && readModel(answer, this.#task!);
    if (parameters) this.#learn({ round: Number(answer.headers.get("X-Sordino-Round") ?? this.#round), parameters, last });
  }

  #learn(model: { round: number; parameters: Float32Array; last: boolean }): void {
    const known = this.#model;
    if (known && (known.last || model.round < known.round) && !model.last) return; // it came late
    this.#model = model;
    if (model.round > (known?.round ?? -1)) this.#tell({ type: "model", round: model.round, parameters: model.parameters });
  }

  // --- getting ready

  async #prepare(): Promise<void> {
    this.#tell({ type: "storage", lasting: await this.#lasting() });
    const answer = await fetched(this.#places.task, { fetch: this.#parts.fetch });
    if (answer.status === 404) throw new Refused(this.#gone);
    if (!answer.ok) throw new Refused(`the server answered ${answer.status}: try again in a moment`);
    const given = read(answer);
    this.#digest = hex(new Uint8Array(await crypto.subtle.digest("SHA-256", answer.bytes)));
    this.#task = readTask(given);
    const { choice, data, task: shown, key } = this.#options;
    if (canonical(shown ?? null) !== canonical(this.#task)) {
      throw new Refused("the terms of this federation have changed since you read them: reload the page and read them again");
    }
    if (key && key !== this.#task.coordinator) {
      throw new Refused("your invitation names another key for the plans of this federation than the server does: it is not the server that invited you");
    }
    await this.#rooms.privacy.open({ task: this.#task, choice, own: data.kind !== "sample" });
    this.#parts.marker.check((await this.#rooms.privacy.ledger()).length);
    const device = await this.#rooms.training.open(this.#task);
    this.#tell({ type: "device", ...device });
    if (data.kind !== "sample") await this.#load(null);
  }

  /** Whether the browser promises to keep the ledger. It clears what is not persistent when space is short; some ask the person first. */
  async #lasting(): Promise<boolean> {
    const asked = Promise.resolve(globalThis.navigator?.storage?.persist?.() ?? false).catch(() => false);
    const late = new Promise<false>((resolve) => setTimeout(() => resolve(false), PATIENCE * this.#parts.pace));
    return Promise.race([asked, late]);
  }

  /** A person's own data before joining; the sample once it is known which part of it belongs to this page. */
  async #load(client: number | null, current = (): boolean => true): Promise<void> {
    const { server, data } = this.#options;
    const sample = client === null ? null : { server, federation: this.federation, client };
    const { blocks, summary } = await this.#rooms.data.load(data, this.#task!, sample);
    if (!current()) return;
    this.#records = summary.records;
    const { training } = this.#rooms;
    const asked = [training.take(new Float32Array(), new Int32Array()), ...blocks.map(({ x, y }) => training.add(x, y))];
    await Promise.all(asked); // at once: none of another sample's come between them
    this.#tell({ type: "data", summary });
  }

  async #join(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#parted = resolve;
      const url = this.#places.socket;
      this.#parts.farewells.drop(url); // whoever left before comes back
      this.#line = new Line({
        url, socket: this.#parts.socket, pace: this.#parts.pace,
        hello: async () => {
          const { id, proof, last } = await this.#rooms.privacy.identity();
          const hello = { type: "hello", protocol: 2, id, proof, kind: "page", token: this.#options.token ?? "", task: this.#digest, last };
          this.#farewell = { url, hello };
          return hello;
        },
        welcome: (welcome) => {
          const current = this.#newest();
          const done = this.#welcomed(welcome, current);
          this.#ready = Promise.race([done.catch(() => false), this.#superseded()]);
          return done.then((through) => { if (through) resolve(); }, (error: unknown) => {
            if (!current()) return; // its line is gone, and another may be fine
            reject(error);
            throw error; // nobody waits for the start any more where this was a reconnect: then the line ends with these words
          });
        },
        message: (message) => this.#heard(message),
        request: (bytes) => this.#requested(bytes),
        away: (seconds, reason) => this.#away(seconds, reason),
        closed: (closed) => {
          this.#closed(closed);
          if (!closed.ended) reject(new Refused(closed.reason));
          else resolve();
        },
      });
    });
  }

  /** Makes a welcome the one that counts, until its line is lost or another comes. */
  #newest(): () => boolean {
    this.#supersede();
    const number = (this.#welcomes += 1);
    return () => number === this.#welcomes;
  }

  #superseded(): Promise<false> {
    return new Promise((resolve) => {
      this.#supersede = () => {
        this.#welcomes += 1;
        resolve(false);
      };
    });
  }

  /** Whether it went through: of a line that is lost in the middle nothing is kept. */
  async #welcomed(welcome: Welcome, current: () => boolean): Promise<boolean> {
    await this.#rooms.privacy.welcome(welcome.client, welcome.rotations ?? []);
    if (this.#options.data.kind === "sample" && this.#client !== welcome.client) await this.#load(welcome.client, current);
    if (!current() || ENDED.includes(this.#state)) return false;
    const back = this.#client !== null;
    this.#client = welcome.client;
    this.#missed = 0;
    if (back) this.#tell({ type: "online" });
    else {
      const rounds = this.#task!.rounds.count;
      this.#tell({ type: "joined", client: welcome.client, round: welcome.status?.round ?? 0, rounds, resumed: welcome.known });
    }
    if (this.#state === "paused") this.#line?.say({ type: "pause" });
    else this.#become(this.#training === null ? "waiting" : "training");
    if (welcome.status) this.#status(welcome.status);
    await this.#tellBudget();
    return true;
  }

  /** A figure that cannot be read now is told with the next report; nothing else waits for it. */
  async #tellBudget(): Promise<void> {
    const budget = await this.budget().catch(() => null);
    if (budget) this.#tell({ type: "budget", budget });
  }

  // --- what the server says

  #heard(message: Record<string, unknown>): void {
    if (message["type"] === "status") this.#status(message);
    if (message["type"] === "received") void this.#rooms.privacy.mark(Number(message["round"]), "received").catch(() => undefined);
    if (message["type"] === "rejected") {
      this.#tell({ type: "refused", reason: `the server did not count round ${message["round"]}: ${message["reason"]}`, final: false });
    }
    if (message["type"] === "ended") this.#end("ended", "finished");
  }

  #status(status: Record<string, unknown>): void {
    const { round, participants, needed, accuracy } = status;
    if (typeof round === "number") this.#round = round;
    if (this.#training !== null && this.#round >= this.#training) this.#stop(); // its report would come too late: how long it takes tells nothing any more
    if (typeof participants === "number") {
      const number = (value: unknown): number | null => (typeof value === "number" ? value : null);
      this.#tell({
        type: "participants", connected: participants, needed: number(needed) ?? 1, places: number(status["places"]), startsIn: number(status["starts_in"]),
      });
    }
    if (typeof accuracy === "number" && this.#accuracyOf !== this.#round) {
      this.#accuracyOf = this.#round;
      this.#tell({ type: "accuracy", round: this.#round, accuracy, loss: typeof status["loss"] === "number" ? status["loss"] : null });
    }
  }

  #away(seconds: number, reason: string): void {
    this.#supersede();
    this.#missed += 1;
    if (this.#missed > 1) void this.#lookForFederation();
    // What is being trained goes on: its report is kept until the server is back.
    if (this.#state !== "paused" && !ENDED.includes(this.#state)) this.#become("offline");
    this.#tell({ type: "offline", retryInSeconds: seconds, reason });
  }

  /** Browsers do not say why no connection came about: perhaps the server is there, and hosts something else by now. */
  async #lookForFederation(): Promise<void> {
    const answer = await fetched(this.#places.task, { fetch: this.#parts.fetch, wanted: () => false }).catch(() => null);
    if (answer?.status !== 404 || this.#line?.connected) return;
    this.#closed({ ended: false, reason: this.#gone });
    this.#parted();
  }

  get #gone(): string {
    return `this server has no federation called ${this.federation}: ask whoever runs it, or choose another`;
  }

  #closed({ ended, reason }: Closed): void {
    if (ENDED.includes(this.#state)) return;
    if (ended) return this.#end("ended", "finished");
    this.#tell({ type: "refused", reason, final: true });
    this.#shut("failed");
  }

  // --- a round

  #requested(bytes: Uint8Array<ArrayBuffer>): void {
    try {
      const request = readRequest(bytes);
      if (request.what === WHAT.step) this.#enqueue(request.step, request.payload);
      else this.#respond({ fine: request.what === WHAT.receipt, reason: request.what === WHAT.receipt ? "" : TOLD.refused });
    } catch (error) {
      this.#respond({ fine: false, reason: TOLD.refused });
      this.#tell({ type: "error", message: wordsOf(error), final: false });
    }
  }

  /** Plans are answered one after another; one that comes again finds its answer in the ledger then. */
  #enqueue(step: string, plan: Uint8Array<ArrayBuffer>): void {
    const ready = this.#ready;
    const noted = ready.then((through) => (through ? this.#note(step, plan) : undefined));
    this.#turn = this.#turn.then(async () => {
      if (!(await ready)) return; // the line was lost before the records were there: the server asks again
      await noted.catch(() => undefined);
      if (this.#interrupted()) return; // what was asked for is answered after the pause
      try {
        await this.#answer(step, plan);
      } catch (error) {
        if (this.#interrupted() || isStop(error)) return; // nothing has left; what was asked for is answered after a pause
        this.#respond({ fine: false, reason: TOLD.unable });
        this.#tell({ type: "error", message: wordsOf(error), final: false });
        this.#done(plan, "waiting");
      }
    });
  }

  /** Makes a plan the one that is asked for now; one that the coordinator did not sign ends no round. */
  async #note(step: string, plan: Uint8Array<ArrayBuffer>): Promise<void> {
    if (!(await this.#rooms.privacy.isSigned(step, plan))) return;
    if (this.#training !== null && this.#plan && !sameBytes(this.#plan, plan)) this.#stop();
    this.#plan = plan;
    this.#step = step;
  }

  async #answer(step: string, plan: Uint8Array<ArrayBuffer>): Promise<void> {
    const ruling = await this.#rooms.privacy.judge(step, plan);
    if (this.#interrupted()) return;
    switch (ruling.kind) {
      case "unsigned":
        this.#respond({ fine: false, reason: TOLD.unsigned });
        this.#tell({ type: "refused", reason: ruling.reason, final: false });
        return this.#done(plan, "waiting");
      case "refused":
        this.#respond({ fine: false, reason: TOLD.refused });
        this.#tell({ type: "refused", reason: ruling.reason, final: false });
        return this.#done(plan, "waiting");
      case "declined":
        this.#respond({ fine: false, reason: TOLD.declined, payload: ruling.answer });
        this.#tell({ type: "declined", round: ruling.round, reason: ruling.reason });
        return this.#done(plan, "declined");
      case "again":
        await this.#send(ruling.round, ruling.answer, "again");
        return this.#done(plan, "waiting");
      case "train":
        return this.#trainAndSend(ruling, plan);
    }
  }

  async #trainAndSend(ruling: Extract<Ruling, { kind: "train" }>, plan: Uint8Array<ArrayBuffer>): Promise<void> {
    const { round, parameters, noise, order, summing } = ruling;
    const records = this.#records; // those that are trained on: a server may give this page another part of the sample meanwhile
    if (this.#over(round, plan)) return this.#late(ruling, plan);
    if (parameters.length) this.#learn({ round: round - 1, parameters: scored(ruling), last: false });
    this.#tell({ type: "round", round, rounds: this.#task!.rounds.count });
    this.#while("training");
    this.#training = round;
    const outcome = await this.#trained({ round, parameters, noise, order, summing }, plan).finally(() => (this.#training = null));
    if (this.#interrupted()) return undefined;
    if (outcome === null) return this.#over(round, plan) ? this.#late(ruling, plan) : this.#forgo(round, plan);
    const { seconds, seen, loss } = outcome;
    this.#tell({ type: "trained", round, seconds, samplesPerSecond: seconds > 0 ? seen / seconds : 0, loss });
    if (this.#over(round, plan)) return this.#late(ruling, plan); // a report that nobody counts would be spent for nothing
    this.#while("randomising");
    const { answer, index, insight } = await this.#rooms.privacy.release(outcome.sums ?? outcome.parameters, records, outcome.order);
    this.#parts.marker.note(index + 1);
    await this.#send(round, answer, "first");
    const clear = insight.clear ?? outcome.clear?.map((value, i) => value - parameters[i]!) ?? null;
    this.#tell({ type: "noise", round, clear, sent: insight.sent }); // last: how long it takes to show must not be seen outside
    await this.#tellBudget();
    return this.#done(plan, "waiting");
  }

  /**
   * What training made; null where it broke and nothing is reported. A record that fails adds 0, so that no single one decides
   * about this. Where whole reports are protected, "no change" is a report like any other, with the same noise. Figures for
   * single records do not cover a change from sums to noise alone, so there the round ends without a report, and counts as spent.
   */
  async #trained(job: Job, plan: Uint8Array<ArrayBuffer>): Promise<Outcome | null> {
    try {
      return await this.#rooms.training.train(job);
    } catch (error) {
      const { training, strengths } = this.#task!;
      if (isStop(error) && this.#over(job.round, plan)) return null;
      if (isStop(error) || this.#interrupted()) throw error;
      const hidden = training.kind === "plain" && strengths.every(({ mechanism }) => mechanism.name !== "none");
      if (training.kind === "plain" && !hidden) throw error;
      const what = hidden ? "noise alone was reported" : "nothing is reported, and the round counts as spent all the same. It is not for one of your examples: each that fails is left out";
      this.#tell({ type: "error", message: `training failed, and ${what}: ${wordsOf(error)}`, final: false });
      return hidden ? { parameters: null, clear: null, sums: null, loss: null, seen: 0, seconds: 0, order: null } : null;
    }
  }

  /** Hands recorded bytes to the network; if it is gone, or the person has paused, they go when they are asked for again. */
  async #send(round: number, answer: Uint8Array<ArrayBuffer>, turn: "first" | "again"): Promise<void> {
    if (this.#line?.connected && this.#state !== "paused") this.#become("sending");
    const response = isReport(answer) ? { fine: true, payload: answer } : { fine: false, reason: TOLD.unable, payload: answer };
    const sent = !this.#interrupted() && this.#respond(response);
    if (sent) await this.#rooms.privacy.mark(round, "sent").catch(() => undefined); // a note: they have gone all the same
    if (isReport(answer) && (sent || turn === "first")) this.#tell({ type: "released", round, bytes: answer.length, replayed: turn === "again" });
  }

  /** Ends a round without a report, which is written down as if there had been one. */
  async #forgo(round: number, plan: Uint8Array<ArrayBuffer>): Promise<void> {
    const { answer, index } = await this.#rooms.privacy.forgo();
    this.#parts.marker.note(index + 1);
    await this.#send(round, answer, "first");
    await this.#tellBudget();
    return this.#done(plan, "waiting");
  }

  #late({ decline }: Extract<Ruling, { kind: "train" }>, plan: Uint8Array<ArrayBuffer>): void {
    this.#respond({ fine: false, reason: TOLD.late, payload: decline });
    this.#done(plan, "waiting");
  }

  /** Whether a round has ended without this page: the server said so, or has asked for another one since. */
  #over(round: number, plan: Uint8Array<ArrayBuffer>): boolean {
    return this.#round >= round || (this.#plan !== null && !sameBytes(this.#plan, plan));
  }

  #interrupted(): boolean {
    return this.#state === "paused" || ENDED.includes(this.#state);
  }

  #done(plan: Uint8Array<ArrayBuffer>, next: SessionState): void {
    if (this.#interrupted()) return; // the plan is taken up again after a pause
    if (this.#plan === plan) this.#plan = null;
    this.#become(this.#line?.connected ? next : "offline");
  }

  #respond(response: Parameters<typeof writeResponse>[0]): boolean {
    return this.#line?.respond(writeResponse(response)) ?? false;
  }

  // --- the end

  #end(state: "ended" | "left", reason: "finished" | "left"): void {
    if (ENDED.includes(this.#state)) return;
    this.#shut(state);
    if (reason === "finished" && this.#task) void this.#newestModel().catch(() => undefined); // what the last round made comes in no plan
    this.#tell({ type: "ended", reason });
    this.#parted();
  }

  #fail(error: unknown): void {
    if (ENDED.includes(this.#state)) return;
    this.#tell({ type: "error", message: wordsOf(error), final: true });
    this.#shut("failed");
  }

  #stop(): void {
    void this.#rooms.training.stop().catch(() => undefined);
  }

  /** The rooms stay, so that the ledger can be read and the model tried; a failed session needs none. */
  #shut(state: "ended" | "left" | "failed"): void {
    this.#become(state);
    this.#line?.close();
    this.#stop();
    if (state === "failed") this.#rooms.close();
  }

  /** What is done now, which is not said while there is no connection: that is what a person has to know then. */
  #while(state: "training" | "randomising"): void {
    if (this.#line?.connected) this.#become(state);
  }

  #become(state: SessionState): void {
    if (this.#state === state || ENDED.includes(this.#state)) return; // nothing that comes later begins it again
    this.#state = state;
    this.#tell({ type: "state", state });
  }

  /** A listener that fails changes nothing of what is sent: what it fails at may be the records. */
  #tell(event: SessionEvent): void {
    for (const listener of this.#listeners) {
      try {
        listener(event);
      } catch (error) {
        globalThis.reportError?.(error);
      }
    }
  }
}

/** The model of a plan as the server hands it out: parameters, and what records are whitened by. */
function scored({ parameters, summing }: Extract<Ruling, { kind: "train" }>): Float32Array {
  const { centre, left } = summing?.whitening ?? { centre: [], left: [] };
  const model = new Float32Array(parameters.length + centre.length + left.length);
  [parameters, centre, left].reduce((first, part) => (model.set(part, first), first + part.length), 0);
  return model;
}

function isStop(error: unknown): boolean {
  return error instanceof Error && error.message === STOPPED;
}

function sameBytes(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((byte, i) => byte === b[i]);
}
