/** Taking part: the lobby, what is happening now, the model to try, the noise, the charts, what has left, and the end. */

import type { BudgetState, LedgerEntry, Session, SessionEvent, SessionState } from "../session/session.ts";
import { AccountsView } from "./account.ts";
import type { Detail, Reach, RoundEntry } from "./api.ts";
import { Chart, type Point } from "./chart.ts";
import { fill, h, say } from "./dom.ts";
import { detailsOf } from "./federation.ts";
import { askingWords, placeWords, sentence } from "./front.ts";
import { filesView } from "./late.ts";
import { type Attendance, invitation, inviteView, lobbyWords, PlacesView } from "./lobby.ts";
import { NoiseView } from "./noise_view.ts";
import type { Build } from "./statement_view.ts";
import { trialView } from "./try_table.ts";
import { clock, counted, DECLINING, duration, epsilon, FLEETING, percent, size, terms, tick, titled } from "./words.ts";

interface Setting {
  detail: Detail;
  build: Build | null;
  announce: (text: string) => void;
  left: () => void;
  /** begins anew with the same examples and the same protection */
  again: () => void;
}

const STOPPED: readonly SessionState[] = ["ended", "left", "failed"];
/** Milliseconds after the end of a round in which the next plan may bring its model. */
const SOON = 400;
/** With fewer examples of each class than this a page says that they are few. */
const FEW = 2;

export class TrainingView {
  readonly element: HTMLElement;
  private readonly session: Session;
  private readonly setting: Setting;
  private readonly now = h("p", { class: "now" });
  private readonly more = h("p", { class: "now-more" });
  private readonly places = new PlacesView();
  private readonly progress = h("progress", { max: 1, value: 0, "aria-label": "Rounds done" });
  private readonly progressWords = h("p", { class: "small quiet" });
  private readonly troubles = h("div", { role: "alert", class: "troubles" });
  private readonly notes = h("div", { class: "notes" });
  private readonly pauseButton = h("button", { type: "button", class: "plain" }, "Pause");
  private readonly leaveButton = h("button", { type: "button", class: "plain" }, "Leave…");
  private readonly actions = h("div", { class: "row actions" }, this.pauseButton, this.leaveButton);
  private readonly device = h("p", { class: "small quiet device" });
  private readonly few = h("p", { class: "small quiet", hidden: true });
  private readonly noise: NoiseView;
  private readonly invite: HTMLElement | null;
  /** On a phone the code stands below the pad. */
  private readonly toInvite = h("button", { type: "button", class: "plain to-invite", onclick: () => this.invite?.scrollIntoView() }, "Invite others ↓");
  private readonly hero = h("div", { class: "hero" });
  private readonly charts = h("div", { class: "two" });
  private readonly files = h("div");
  private readonly accuracyChart: Chart;
  private readonly budgetChart: Chart;
  private readonly kept = h("p", { class: "small quiet" });
  private readonly sentBody = h("tbody");
  private readonly sentTable = h("table", { hidden: true });
  private readonly statement = h("div");
  private readonly sentWords = h("p", { class: "quiet" });
  private readonly sent = h("section", { class: "card", "aria-labelledby": "sent", hidden: true });
  private accounts: AccountsView;
  private readonly accuracies = new Map<number, number>();
  private budget: BudgetState | null = null;
  /** whether the browser promises to keep what the budget is counted from */
  private lasting = true;
  private round = 0;
  private rounds: number;
  /** rounds that are over */
  private done: number;
  private declinedSince: number | null = null;
  private attendance: Attendance;
  /** when the first round begins, in milliseconds since 1970 */
  private startsAt: number | null = null;
  private countdown: ReturnType<typeof setInterval> | undefined;

  constructor(session: Session, setting: Setting) {
    this.session = session;
    this.setting = setting;
    this.accounts = new AccountsView(setting.detail.statement);
    this.rounds = setting.detail.rounds;
    this.round = setting.detail.round;
    this.done = setting.detail.round;
    const { clients, quorum, participants, starts_in, history, task } = setting.detail;
    this.attendance = { connected: Math.max(1, participants), needed: quorum, places: clients, startsIn: null };
    this.countFrom(starts_in ?? null);
    const link = invitation(setting.detail, location);
    this.invite = link === null ? null : inviteView(link);
    this.noise = new NoiseView(task);
    for (const entry of history) this.noteAccuracy(entry);
    this.accuracyChart = new Chart({
      title: "How good the model is",
      note: "Share of unseen test examples that the shared model gets right, measured by the server after each round.",
      x: "round",
      y: tick,
    });
    this.budgetChart = new Chart({
      title: "What your reports reveal at most",
      note: "Epsilon spent, as this page's own record counts it.",
      x: "round",
      y: (value) => (value === 0 ? "0" : epsilon(value)),
    });
    this.element = this.layout();
    this.pauseButton.addEventListener("click", () => this.togglePause());
    this.leaveButton.addEventListener("click", () => this.askToLeave());
    this.draw();
    this.showState(session.state);
    session.subscribe((event) => this.on(event));
    void this.refreshLedger();
  }

  noteRound(entry: RoundEntry): void {
    this.noteAccuracy(entry);
    this.draw();
  }

  /** Taking part goes over a line of its own: this is about the chart alone. */
  noteReach(reach: Reach, why: string): void {
    if (reach === "asking") this.note("plain", `${askingWords(why)} Your part goes on as before.`);
  }

  private noteAccuracy(entry: Pick<RoundEntry, "round" | "accuracy">): void {
    if (entry.accuracy !== null && entry.accuracy !== undefined) this.accuracies.set(entry.round, entry.accuracy);
  }

  private layout(): HTMLElement {
    const { detail, build } = this.setting;
    const head = ["round", "time", "size", "state", "epsilon", "what"];
    fill(
      this.sentTable,
      h("thead", {}, h("tr", {}, ...head.map((name) => h("th", { scope: "col" }, name)))),
      this.sentBody,
    );
    fill(this.statement, detailsOf(detail, build, this.accounts));
    fill(
      this.sent,
      h("h2", { id: "sent" }, "What has left this page"),
      this.sentWords,
      h(
        "div",
        { class: "scroll sent", tabindex: 0, role: "region", "aria-label": "Record of everything that left" },
        this.sentTable,
      ),
    );
    fill(
      this.hero,
      h(
        "section",
        { class: "card", "aria-labelledby": "try" },
        h("h2", { id: "try" }, "Try the model"),
        trialView(detail, this.session, (renew) => onNewerModel(this.session, renew)),
      ),
      this.invite,
    );
    fill(
      this.charts,
      h("div", { class: "card" }, this.accuracyChart.element),
      h("div", { class: "card" }, this.budgetChart.element),
    );
    return h(
      "div",
      {},
      h("h1", {}, titled(detail.title)),
      h(
        "section",
        { class: "happening", "aria-labelledby": "now" },
        h("h2", { id: "now", class: "unseen" }, "What is happening"),
        this.now,
        this.more,
        this.places.element,
        this.toInvite,
        this.progress,
        this.progressWords,
        this.actions,
        this.few,
      ),
      this.troubles,
      this.notes,
      this.hero,
      this.noise.element,
      this.charts,
      this.files,
      this.sent,
      this.kept,
      this.device,
      this.statement,
    );
  }

  private countFrom(startsIn: number | null): void {
    clearInterval(this.countdown);
    this.startsAt = startsIn === null ? null : Date.now() + 1000 * startsIn;
    if (startsIn === null) return;
    this.countdown = setInterval(() => {
      if (!this.isLobby || !this.element.isConnected) return clearInterval(this.countdown);
      if (this.session.state === "waiting") this.showState("waiting");
    }, 1000);
  }

  /** Whether the first round has yet to begin. */
  private get isLobby(): boolean {
    return this.round === 0 && !STOPPED.includes(this.session.state);
  }

  /** The federation is over: its statement is about what was really released. */
  noteEnd(detail: Detail): void {
    this.accounts = new AccountsView(detail.statement);
    if (this.budget !== null) this.accounts.tell(this.budget);
    fill(this.statement, detailsOf(detail, this.setting.build, this.accounts));
    for (const entry of detail.history) this.noteAccuracy(entry);
    this.draw();
    if (detail.state === "finished") fill(this.files, filesView(detail.name));
    if (this.session.state === "ended") this.showState("ended");
  }

  /** What came out of it, to whoever took part. */
  private get outcome(): string {
    const last = [...this.accuracies].sort(([a], [b]) => a - b).at(-1);
    return last === undefined
      ? "This federation is over. Try the model that came out of it."
      : `The model now gets ${percent(last[1])} of unseen examples right. Try it.`;
  }

  private on(event: SessionEvent): void {
    switch (event.type) {
      case "state":
        return this.showState(event.state);
      case "device":
        return this.showDevice(event.device, event.threads, event.notes);
      case "storage":
        this.lasting = event.lasting;
        return this.drawBudget();
      case "joined":
        this.rounds = event.rounds;
        this.round = event.round;
        if (event.resumed)
          this.note("good", "Welcome back. The server knows this page again, and your record is as it was.");
        return this.setting.announce(event.resumed ? "Joined again." : "Joined.");
      case "participants":
        this.attendance = {
          connected: Math.max(1, event.connected), // this page is one of them, though it may have just come
          needed: event.needed,
          places: event.places ?? this.attendance.places,
          startsIn: null,
        };
        this.countFrom(event.startsIn);
        return this.showState(this.session.state);
      case "data":
        this.few.hidden = event.summary.records >= FEW * event.summary.perClass.length;
        return say(
          this.few,
          `You take part with ${counted(event.summary.records, "example")}. That is few: the model learns little from them, and the noise hides most of it.`,
        );
      case "model":
        this.done = Math.max(this.done, event.round);
        this.noise.noteModel(event);
        return this.draw();
      case "noise":
        return this.noise.noteReport(event);
      case "round":
        this.round = event.round;
        this.rounds = event.rounds;
        this.showState(this.session.state);
        return this.draw();
      case "progress":
        return say(
          this.more,
          `${event.doing === "features" ? "Computing features of your examples: number" : "Learning from your examples: step"} ${event.step} of ${event.steps}. Nothing has left in this round yet.`,
        );
      case "released":
        void this.refreshLedger();
        return this.setting.announce(`Round ${event.round} of ${this.rounds}: your part is done.`);
      case "accuracy":
        this.noteAccuracy(event);
        return this.draw();
      case "budget":
        this.budget = event.budget;
        return void this.refreshLedger(); // after a reload, what had left before is shown as soon as the record is open
      case "declined":
        this.declinedSince ??= event.round;
        return;
      case "refused":
        return this.trouble(event.reason, event.final);
      case "offline":
        if (this.session.state !== "offline") return; // whoever pauses reads that nothing leaves
        return say(
          this.more,
          `${sentence(event.reason)} Trying again in ${duration(event.retryInSeconds)}. Nothing is lost: what was written down is sent when the connection is back.`,
        );
      case "online":
        fill(this.troubles);
        return;
      case "error":
        return this.trouble(event.message, event.final);
      case "ended":
        fill(this.notes);
        return void this.refreshLedger();
    }
  }

  private showState(state: SessionState): void {
    const round = `Round ${Math.max(1, this.round)} of ${this.rounds}`;
    const words: Record<SessionState, [string, string]> = {
      new: ["Ready", "Nothing leaves yet."],
      preparing: ["Getting ready", "Reading your examples and setting up the model. Nothing leaves meanwhile."],
      waiting: this.waitingWords(),
      training: [`${round}: learning`, "Your page learns from your examples. Nothing has left in this round yet."],
      randomising: [`${round}: adding noise`, "The result is being mixed with noise and written into your record."],
      sending: [`${round}: sending`, "The noisy summary is in your record; the server gets exactly those bytes."],
      paused: ["Paused", "The federation goes on without you. Nothing leaves while you pause."],
      offline: ["No connection", "Trying to reach the server again. Nothing is lost."],
      declined: [
        "Your budget is used up",
        `You still see how it goes on. From round ${this.declinedSince ?? this.round} on ${DECLINING}`,
      ],
      ended: ["Done. Thank you.", this.outcome],
      left: ["You have left", "Nothing more leaves. Your record stays in this browser."],
      failed: ["Stopped", "Nothing more leaves this page."],
    };
    const [head, rest] = words[state];
    say(this.now, head);
    say(this.more, rest);
    this.element.dataset["state"] = state;
    say(this.pauseButton, state === "paused" ? "Continue" : "Pause");
    const stopped = STOPPED.includes(state);
    this.pauseButton.hidden = state === "declined";
    this.actions.hidden = stopped;
    this.progress.hidden = this.isLobby || state === "failed" || state === "left"; // nothing goes on here
    this.progressWords.hidden = this.progress.hidden;
    this.places.element.hidden = !this.isLobby || state === "preparing" || state === "new";
    this.places.show(this.attendance);
    this.charts.hidden = this.round === 0 || (state === "failed" && this.spent.length === 0); // they would be empty
    this.hero.hidden = state === "failed"; // nothing computes any more
    if (this.invite !== null) this.invite.hidden = this.places.element.hidden;
    this.toInvite.hidden = this.invite === null || this.invite.hidden;
    this.device.hidden = stopped;
    say(this.kept, placeWords(state, this.setting.detail));
    this.kept.hidden = this.kept.textContent === "";
    if (state === "declined" || state === "paused" || stopped) this.setting.announce(`${head}. ${rest}`);
    if (stopped) void this.refreshLedger();
  }

  private waitingWords(): [string, string] {
    const { connected, needed } = this.attendance;
    if (this.round === 0) {
      const startsIn = this.startsAt === null ? null : (this.startsAt - Date.now()) / 1000;
      return lobbyWords({ ...this.attendance, startsIn });
    }
    if (connected < needed) {
      return [`Waiting for ${needed - connected} more`, `${connected} of ${needed} who are needed are here. It goes on by itself.`];
    }
    return [`Round ${this.round} of ${this.rounds}: your part is done`, "Waiting for the server and the other participants."];
  }

  private showDevice(device: string, threads: number, notes: readonly string[]): void {
    const means =
      device === "webgpu"
        ? "the graphics processor"
        : threads > 1
          ? `${threads} threads of the processor`
          : "one thread of the processor";
    say(this.device, `Computing on ${means} of this device.`);
    for (const note of notes) this.note("plain", note);
  }

  private note(kind: "good" | "warn" | "plain", text: string): void {
    const known = [...this.notes.children].find((child) => child.textContent === text);
    if (known === undefined) this.notes.append(h("p", { class: `note ${kind}` }, text));
    while (this.notes.children.length > 4) this.notes.firstElementChild?.remove();
  }

  private trouble(text: string, final: boolean): void {
    const again = h("button", { type: "button", class: "main", onclick: () => this.setting.again() }, "Try again");
    const back = h("button", { type: "button", onclick: () => this.setting.left() }, "Back to the federation");
    fill(
      this.troubles,
      h(
        "div",
        { class: final ? "note bad" : "note warn" },
        h("p", {}, h("b", {}, final ? "This page cannot go on. " : "There is a difficulty. "), sentence(text)),
        final && h("p", { class: "row" }, again, back),
      ),
    );
  }

  private togglePause(): void {
    if (this.session.state === "paused") void this.session.start();
    else this.session.pause();
  }

  private askToLeave(): void {
    const dialog = h(
      "dialog",
      { "aria-labelledby": "leave-title", class: "card" },
      h("h2", { id: "leave-title" }, "Leave this federation?"),
      h(
        "p",
        {},
        "Nothing more will leave this page. What was sent before cannot be taken back; your record of it stays in this browser, so that your budget counts on if you come back.",
      ),
      h(
        "div",
        { class: "row" },
        h("button", { type: "button", class: "main", onclick: () => leave() }, "Leave"),
        h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Stay"), // where a second Enter goes
      ),
    );
    const leave = (): void => {
      dialog.close();
      void this.session.leave().then(() => this.setting.left());
    };
    dialog.addEventListener("close", () => dialog.remove());
    this.element.append(dialog);
    dialog.showModal();
  }

  /** What the server calls this federation, and what its plans and the record call it. */
  private get names(): string[] {
    return [this.session.federation, this.setting.detail.task.federation];
  }

  private async refreshLedger(): Promise<void> {
    try {
      const entries = (await this.session.ledger()).filter(({ federation }) => this.names.includes(federation));
      this.budget = await this.session.budget();
      this.showLedger(entries);
      this.draw();
    } catch {
      // The record opens with the session; before that there is nothing to show.
    }
  }

  private showLedger(entries: readonly LedgerEntry[]): void {
    this.sent.hidden = false;
    const states = { kept: "kept, not sent yet", sent: "sent", received: "arrived" };
    const total = entries.reduce((sum, { bytes }) => sum + bytes, 0);
    say(
      this.sentWords,
      entries.length === 0
        ? "Nothing yet. Every line will be written here before anything is sent."
        : `${counted(entries.length, "report")}, ${size(total)} in all. Each was written down here before it was sent; this record survives closing the page. Epsilon is that of everything so far${this.budget === null ? "" : ` (${terms(this.budget)})`}.`,
    );
    this.sentTable.hidden = entries.length === 0;
    this.sentBody.replaceChildren(
      ...[...entries]
        .reverse()
        .map((entry) =>
          h(
            "tr",
            { "data-round": entry.round, "data-head": entry.head },
            h("td", {}, entry.round),
            h("td", {}, clock(entry.time)),
            h("td", {}, size(entry.bytes)),
            h("td", {}, states[entry.sent]),
            h("td", {}, epsilon(entry.spentAfter)),
            h("td", {}, entry.what.join(", ")),
          ),
        ),
    );
    this.spent = entries.map(({ round, spentAfter }) => ({ x: round, y: spentAfter }));
  }

  private spent: Point[] = [];

  private draw(): void {
    this.progress.max = this.rounds;
    const done = Math.min(this.rounds, Math.max(this.done, ...this.accuracies.keys()));
    this.progress.value = done;
    say(this.progressWords, `${done} of ${counted(this.rounds, "round")} ${done === 1 ? "is" : "are"} done.`);
    const points = [...this.accuracies].sort(([a], [b]) => a - b).map(([x, y]) => ({ x, y }));
    const last = points.at(-1);
    this.accuracyChart.draw({
      series: [{ name: "the shared model", points, colour: 0, area: true }],
      last: this.rounds,
      top: 1,
      summary:
        last === undefined
          ? "No accuracy was measured yet."
          : `After round ${last.x} the model gets ${percent(last.y)} right; after round ${points[0]?.x} it was ${percent(points[0]?.y)}.`,
    });
    this.drawBudget();
  }

  private drawBudget(): void {
    const budget = this.budget;
    if (budget !== null) this.accounts.tell(budget);
    const limit =
      budget !== null && Number.isFinite(budget.limit)
        ? { limit: { y: budget.limit, name: `your limit: ${epsilon(budget.limit)}` } }
        : {};
    const points = this.spent.filter(({ y }) => Number.isFinite(y));
    const words =
      budget === null
        ? ""
        : `Epsilon ${epsilon(budget.spent)} of ${epsilon(budget.limit)} is spent (${terms(budget)}).${this.lasting ? "" : ` ${FLEETING}`}`;
    this.budgetChart.draw({
      series: [
        {
          name: "spent",
          points: points.length > 0 ? [{ x: points[0]!.x - 1, y: 0 }, ...points] : [],
          colour: 1,
          area: true,
        },
      ],
      last: this.rounds,
      top: budget !== null && Number.isFinite(budget.limit) ? budget.limit * 1.12 : 1,
      ...limit,
      summary: words || "Nothing is spent yet.",
    });
    if (words !== "") this.budgetChart.explain(`${words}${firstCostsMost(points.map(({ y }) => y), budget?.afterNext ?? null) ? ` ${FIRST_REPORT}` : ""}`);
  }
}

const FIRST_REPORT =
  "The first report costs most: delta, the small chance that this bound fails, is paid for once, and every later report adds less.";

/** Whether the first report cost more than each later one; `next` is what the record would say after one more. */
export function firstCostsMost(spent: readonly number[], next: number | null): boolean {
  const all = next === null || !Number.isFinite(next) ? spent : [...spent, next];
  const [first, ...later] = all.map((value, k) => value - (all[k - 1] ?? 0));
  return first !== undefined && later.length > 0 && later.every((step) => step < 0.9 * first);
}

/** Calls back when there is a newer model to answer with: one that came with a plan, or one that can be asked for. */
export function onNewerModel(session: Pick<Session, "subscribe">, renew: () => void): void {
  let newest = -1;
  session.subscribe((event) => {
    if (event.type === "model") {
      newest = event.round;
      renew();
    }
    if (event.type === "accuracy") setTimeout(() => event.round > newest && renew(), SOON);
  });
}
