/** A federation while it runs: who is here, how it goes, what was refused, what is proven; as far as one may see it. */

import {
  address,
  ASKING,
  carryToken,
  federations,
  follow,
  freePlace,
  NeedsToken,
  shown as fetchShown,
  type Live,
  type Participant,
  type RoundEntry,
  type RunLive,
  type ServerStatement,
  type Shown,
  type Summary,
} from "../ui/api.ts";
import { Chart } from "../ui/chart.ts";
import { fill, h, saveFile, say, type Child } from "../ui/dom.ts";
import { askingWords, full, over, sentence, stateBadges } from "../ui/front.ts";
import { read } from "../ui/place.ts";
import { statementView } from "../ui/statement_view.ts";
import { trouble, tryAgain } from "../ui/trouble.ts";
import { awaited } from "../ui/waiting.ts";
import { count, counted, percent, size, tick, titled } from "../ui/words.ts";
import { wordsOf } from "../wire/refusal.ts";
import { Control, invitation } from "./control.ts";
import { freeingWords, lateReports, refusedReports, startWords, total, waitingWords } from "./counts.ts";
import { MembersView } from "./members.ts";
import { takeToken, tokenForm } from "./token.ts";

const view = document.getElementById("view") as HTMLElement;
const announcements = document.getElementById("announcements") as HTMLElement;
let stop: () => void = () => undefined;
let shown = 0;

const FOR_THE_OPERATOR =
  "Single participants are shown to whoever runs the server: on its own machine, as localhost, or with the operator's token.";
const OF_MEMBERS =
  "Nothing here comes from a member's data except randomised reports. Beside them the server knows who answers when, and what members say when they decline.";

/** A participant's place in the list; it stays the same element, so that a button does not move away under a hand. */
interface Slot {
  item: HTMLElement;
  facts: HTMLElement;
  button: HTMLButtonElement;
}

class LiveView {
  readonly element: HTMLElement;
  private readonly detail: Shown;
  private readonly history = new Map<number, RoundEntry>();
  private summary: Summary;
  /** of a federation that pages join */
  private live: Live | null = null;
  /** of a run that one can only watch */
  private run: RunLive | null = null;
  private readonly members: MembersView | null;
  private readonly badge = h("span", { class: "row" });
  private readonly connection = h("span", { class: "badge connection" }, "connecting");
  private readonly instead = h("p", { class: "note warn", hidden: true, role: "status" });
  private readonly tiles = h("dl", { class: "tiles" });
  private readonly why = h("p", { class: "quiet" });
  private readonly control: Control;
  private readonly invite = h("div");
  private readonly slots = h("ul", { class: "slots" });
  private readonly slot = new Map<number, Slot>();
  private readonly freeAway = h(
    "button",
    { type: "button", class: "plain", hidden: true, onclick: () => this.askToFree(this.away.map(({ client }) => client)) },
    "Free all places of those who are away…",
  );
  private readonly freeing = h("div", { role: "alert" });
  private readonly waiting = h("p", { class: "quiet" });
  private readonly refused = h("div", { class: "stack" });
  private readonly statement = h("div");
  private stated: ServerStatement | null;
  private readonly charts = h("div", { class: "two" });
  private readonly rounds = h("section", { class: "card", "aria-labelledby": "rounds" });
  private readonly downloads = h("div", { class: "downloads" });
  private readonly roundsBody = h("tbody");
  private readonly accuracy = new Chart({
    title: "Accuracy",
    note: "Share of the test examples that the shared model gets right.",
    x: "round",
    y: tick,
  });
  private readonly reports: Chart;

  constructor(detail: Shown) {
    this.detail = detail;
    this.summary = detail;
    this.stated = detail.statement;
    this.members = detail.watched ? new MembersView() : null;
    this.reports = new Chart({
      title: "Reports",
      note: detail.watched
        ? "How many members a round asked, and how many reports came that could be used."
        : "How many places the round had, taken or not, and how many reports came that could be used.",
      x: "round",
      y: (value) => String(Math.round(value * 10) / 10),
    });
    this.take(detail.live);
    for (const entry of detail.history) this.history.set(entry.round, entry);
    this.control = new Control(detail);
    this.element = this.layout();
    this.draw();
    this.drawInvitation();
    this.showStatement(detail.statement);
  }

  private take(live: Live | RunLive | null): void {
    if (live !== null && "role" in live) this.run = live;
    else this.live = live;
  }

  follow(): () => void {
    return follow(this.detail, {
      summary: (summary) => {
        const before = this.summary.state;
        this.summary = summary;
        this.draw();
        if (before !== summary.state) {
          say(announcements, `${summary.title} is now ${summary.state}. ${summary.why}`);
          void this.refresh();
        }
      },
      round: (entry) => {
        this.history.set(entry.round, entry);
        this.draw();
      },
      live: (live) => {
        this.take(live);
        this.draw();
      },
      statement: (statement) => this.showStatement(statement),
      reach: (reach, why) => {
        const lost = this.members !== null && over(this.summary) ? "the coordinator has ended" : "connection lost, trying again";
        const words = { told: "live", asking: `asks every ${ASKING} seconds`, lost };
        say(this.connection, words[reach]);
        this.connection.className = reach === "told" ? "badge connection live" : "badge connection warn";
        this.instead.hidden = reach !== "asking";
        say(this.instead, reach === "asking" ? askingWords(why) : "");
      },
      renewed: () => void show(),
    });
  }

  /** What is not in the stream: the statement of what was really released, and the downloads. */
  private async refresh(): Promise<void> {
    const detail = await fetchShown(this.detail.name).catch(() => null);
    if (detail !== null) this.showStatement(detail.statement);
  }

  private layout(): HTMLElement {
    const head = ["round", "accuracy", "loss", this.detail.watched ? "asked" : "places", "reported", "late", "declined", "refused", "seconds"];
    fill(
      this.charts,
      h("div", { class: "card" }, this.accuracy.element),
      h("div", { class: "card" }, this.reports.element),
    );
    fill(
      this.rounds,
      h("h2", { id: "rounds" }, "Rounds"),
      h(
        "div",
        { class: "scroll sent", tabindex: 0, role: "region", "aria-label": "All rounds" },
        h(
          "table",
          {},
          h("thead", {}, h("tr", {}, ...head.map((name) => h("th", { scope: "col" }, name)))),
          this.roundsBody,
        ),
      ),
    );
    return h(
      "div",
      {},
      h("div", { class: "headline" }, h("h1", {}, titled(this.detail.title)), this.badge, this.connection),
      this.detail.summary !== "" && h("p", { class: "lead" }, sentence(this.detail.summary)),
      this.instead,
      h(
        "section",
        { class: "card", "aria-labelledby": "state" },
        h("h2", { id: "state", class: "unseen" }, "State"),
        this.tiles,
        this.why,
        this.control.element,
      ),
      this.invite,
      this.charts,
      ...(this.members === null ? this.participants() : [this.members.element]),
      this.rounds,
      h(
        "section",
        { class: "card", "aria-labelledby": "downloads" },
        h("h2", { id: "downloads" }, "Downloads"),
        this.downloads,
      ),
      h(
        "section",
        { class: "card", "aria-labelledby": "statement" },
        h("h2", { id: "statement" }, "Privacy statement"),
        this.statement,
      ),
    );
  }

  /** The sections about those who take part with a page, or with a program that joins like one. */
  private participants(): HTMLElement[] {
    return [
      h(
        "section",
        { class: "card", "aria-labelledby": "participants" },
        h("h2", { id: "participants" }, "Participants"),
        this.waiting,
        this.slots,
        h("p", {}, this.freeAway),
        this.freeing,
      ),
      h(
        "section",
        { class: "card", "aria-labelledby": "refused" },
        h("h2", { id: "refused" }, "Refused reports"),
        h(
          "p",
          { class: "quiet" },
          "A report that this federation's mechanism could not have sent is not counted, whoever sent it.",
        ),
        this.refused,
      ),
    ];
  }

  private draw(): void {
    const { summary, live, run } = this;
    const refusals = refusedReports(this.history.values(), live);
    const late = lateReports(this.history.values(), live);
    const declined = total(this.history.values(), "declined");
    fill(this.badge, ...stateBadges(summary));
    const tile = (name: string, value: Child, small: string, attention = false): HTMLElement =>
      h("div", { class: attention ? "attention" : "" }, h("dt", {}, name), h("dd", {}, value, h("small", {}, small)));
    fill(
      this.tiles,
      tile(
        summary.watched ? "Members" : "Participants",
        `${summary.participants} of ${summary.clients}`,
        over(summary) ? "it is over" : `at least ${summary.quorum} needed${summary.watched ? "" : `; ${placesWords(summary)}`}`,
        !over(summary) && summary.participants < summary.quorum,
      ),
      tile(
        "Round",
        `${summary.round} of ${summary.rounds}`,
        summary.state === "training" ? "whole rounds so far" : summary.state,
      ),
      tile(
        "Accuracy",
        summary.accuracy === null ? "–" : percent(summary.accuracy),
        summary.accuracy === null ? "not measured yet" : "on the test set",
      ),
      summary.private
        ? tile(titled(summary.private.name), summary.private.value, `on members' own records, after round ${summary.private.round}`)
        : null,
      summary.metric ? tile(titled(summary.metric), summary.score?.toPrecision(3) ?? "–", "on the test set") : null,
      ...(summary.watched
        ? [
            tile("Declined", count(declined), declined === 1 ? "answer" : "answers", declined > 0),
            tile("Late or refused", count(late + refusals), late + refusals === 1 ? "report" : "reports", late + refusals > 0),
          ]
        : [
            tile("Late", count(late), late === 1 ? "report" : "reports", late > 0),
            tile("Refused", count(refusals), refusals === 1 ? "report" : "reports", refusals > 0),
          ]),
      ...[live ?? run].map(
        (one) =>
          one?.bytes_up !== undefined &&
          tile("Received", size(one.bytes_up), `sent ${size(one.bytes_down ?? 0)}; up since ${startWords(one.uptime ?? 0, Date.now())}`),
      ),
    );
    say(
      this.why,
      summary.round >= summary.rounds && summary.state === "training"
        ? "The last round is done; the report is being written."
        : sentence(summary.why),
    );
    this.control.draw(summary);
    this.charts.hidden = this.rounds.hidden = this.history.size === 0; // they would be empty
    this.drawCharts();
    if (run !== null) this.members?.draw(summary, run);
    this.drawParticipants();
    this.drawRefused();
    this.drawRounds();
    this.drawDownloads();
  }

  private drawInvitation(): void {
    const changed = (link: string): void => {
      this.detail.link = link;
      this.drawInvitation();
      say(announcements, "There is a new link. The one before admits nobody any more.");
    };
    fill(this.invite, invitation(this.detail, changed));
  }

  private drawCharts(): void {
    const entries = [...this.history.values()].sort((a, b) => a.round - b.round);
    const points = entries
      .filter(({ accuracy }) => accuracy !== null)
      .map(({ round, accuracy }) => ({ x: round, y: accuracy as number }));
    const last = points.at(-1);
    this.accuracy.draw({
      series: [{ name: "accuracy", points, colour: 0, area: true }],
      last: this.summary.rounds,
      top: 1,
      summary:
        last === undefined ? "No accuracy was measured yet." : `Accuracy ${percent(last.y)} after round ${last.x}.`,
    });
    this.reports.draw({
      series: [
        { name: "reported", points: entries.map(({ round, reported: y }) => ({ x: round, y })), colour: 2, area: true },
        { name: this.members === null ? "places" : "asked", points: entries.map(({ round, asked: y }) => ({ x: round, y })), colour: 3 },
      ],
      last: this.summary.rounds,
      top: this.summary.clients,
      summary:
        entries.length === 0
          ? "No round is done yet."
          : `In round ${entries.at(-1)?.round} reports came from ${entries.at(-1)?.reported} of ${entries.at(-1)?.asked} ${this.members === null ? "places" : "members"}.`,
    });
  }

  private drawParticipants(): void {
    if (this.live === null) return say(this.waiting, FOR_THE_OPERATOR);
    const waiting = this.live.waiting_for;
    say(this.waiting, waitingWords(this.summary, this.live));
    const items = this.live.participants.map((one) => this.drawSlot(one, waiting.includes(one.client)));
    if (items.length === 0) fill(this.slots, h("li", {}, "Nobody has joined yet."));
    else if (items.some((item, k) => this.slots.children[k] !== item) || this.slots.children.length !== items.length)
      fill(this.slots, ...items);
    this.freeAway.hidden = !this.detail.may_free || this.away.length < 2;
  }

  /** Those who hold a place and are not here. */
  private get away(): Participant[] {
    return (this.live?.participants ?? []).filter((one) => one.holds_place && !one.connected);
  }

  private drawSlot(one: Participant, awaited: boolean): HTMLElement {
    const { item, facts, button } = this.slotOf(one.client);
    const kind = one.kind === "page" ? "a page" : "a program";
    const where = one.connected ? "connected" : one.holds_place ? "not connected" : "the place is free";
    const troubles = [one.declined > 0 && `declined ${one.declined}`, one.late > 0 && `late ${one.late}`]
      .filter(Boolean)
      .join(", ");
    item.className = awaited ? "awaited" : one.connected ? "here" : "gone";
    fill(
      facts,
      h("b", {}, `Number ${one.client}`),
      h("span", {}, one.holds_place ? `${kind}, ${where}` : where),
      h(
        "span",
        {},
        one.reports > 0 ? `${counted(one.reports, "report")}, last in round ${one.last_round}` : "no report that counts yet",
      ),
      troubles !== "" && h("span", {}, troubles),
      one.refused > 0 && h("span", { class: "wrong" }, `${counted(one.refused, "report")} refused`),
    );
    button.hidden = !this.detail.may_free || !one.holds_place;
    return item;
  }

  private slotOf(client: number): Slot {
    const known = this.slot.get(client);
    if (known !== undefined) return known;
    const facts = h("div");
    const button = h(
      "button",
      { type: "button", class: "small plain", onclick: () => this.askToFree([client]) },
      `Free place ${client}…`,
    );
    const made = { item: h("li", { "data-client": client }, facts, button), facts, button };
    this.slot.set(client, made);
    return made;
  }

  private askToFree(clients: readonly number[]): void {
    const connected = (this.live?.participants ?? []).filter((one) => one.connected && clients.includes(one.client));
    const free = (): void => {
      dialog.close();
      void this.free(clients);
    };
    const dialog = h(
      "dialog",
      { "aria-labelledby": "free-title", class: "card" },
      h("h2", { id: "free-title" }, clients.length === 1 ? "Free this place?" : "Free these places?"),
      h("p", {}, freeingWords(clients, connected.length)),
      h(
        "div",
        { class: "row" },
        h("button", { type: "button", class: "main", onclick: free }, clients.length === 1 ? "Free it" : "Free them"),
        h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Keep"),
      ),
    );
    dialog.addEventListener("close", () => dialog.remove());
    this.element.append(dialog);
    dialog.showModal();
  }

  private async free(clients: readonly number[]): Promise<void> {
    fill(this.freeing);
    try {
      for (const client of clients) await freePlace(this.summary.name, client);
      say(announcements, clients.length === 1 ? "The place is free." : "The places are free.");
    } catch (problem) {
      fill(this.freeing, h("p", { class: "note bad" }, sentence(wordsOf(problem))));
    }
  }

  private drawRefused(): void {
    if (this.live === null) return fill(this.refused, h("p", {}, "How many were refused is in the table of rounds."));
    const found = this.live.refused;
    if (found.length === 0) return fill(this.refused, h("p", {}, "None so far."));
    fill(
      this.refused,
      ...found
        .slice(-20)
        .reverse()
        .map(({ client, round, reason }) =>
          h("p", { class: "note bad" }, h("b", {}, `Number ${client}, round ${round}: `), reason),
        ),
    );
  }

  private drawRounds(): void {
    const entries = [...this.history.values()].sort((a, b) => b.round - a.round);
    this.roundsBody.replaceChildren(
      ...entries.map((one) =>
        h(
          "tr",
          {},
          ...[
            one.round,
            one.accuracy === null ? "" : percent(one.accuracy),
            one.loss === null ? "" : one.loss.toFixed(3),
            one.asked,
            one.reported,
            one.late,
            one.declined,
            one.refused,
            one.seconds.toFixed(1),
          ].map((cell) => h("td", {}, cell)),
        ),
      ),
    );
  }

  private drawDownloads(): void {
    const at = address(this.summary.name);
    const over = this.summary.state === "finished";
    const state = String(over);
    if (this.downloads.dataset["state"] === state) return;
    this.downloads.dataset["state"] = state;
    fill(
      this.downloads,
      h("button", { type: "button", onclick: () => this.saveStatement() }, "Privacy statement (JSON)"),
      ...(this.summary.watched ? [] : this.files(at, over)),
    );
  }

  /** What everybody may have of a federation that pages join. */
  private files(at: string, over: boolean): Child[] {
    if (!over) return [h("p", { class: "small quiet" }, "The model and the report are written when the last round is done.")];
    return [
      h(
        "a",
        { class: "button", href: `${at}/model.safetensors`, download: `${this.summary.name}.safetensors` },
        "Model (safetensors)",
      ),
      h("a", { class: "button", href: `${at}/report.html`, target: "_blank", rel: "noopener" }, "Report"),
    ];
  }

  /** As it was told: a link could not carry a token. */
  private saveStatement(): void {
    saveFile(`${this.summary.name}-statement.json`, JSON.stringify(this.stated, null, 1));
  }

  private showStatement(statement: ServerStatement | null): void {
    this.stated = statement;
    fill(this.statement, statementView(statement, "theirs"));
  }
}

function placesWords(summary: Summary): string {
  return full(summary) ? "all places are taken" : `${counted(summary.free, "place")} free`;
}

async function show(): Promise<void> {
  const turn = ++shown;
  stop();
  try {
    const content = await awaited(asked(), view, () => turn === shown);
    if (turn !== shown) return; // another federation was chosen meanwhile
    if (content === null) return fill(view, h("h1", {}, "Live"), h("p", {}, "This server has no federation."));
    const { all, detail } = content;
    const live = new LiveView(detail);
    stop = live.follow();
    document.title = `${detail.title} · Live · Sordino`;
    fill(view, all.length > 1 && picker(all, detail.name), live.element);
    if (detail.watched) frameWatched();
  } catch (problem) {
    if (turn === shown && problem instanceof NeedsToken) {
      frameWatched(); // only runs that one can watch need a token for everything
      return fill(view, tokenForm(enter));
    }
    if (turn === shown) fill(view, trouble(problem, tryAgain(() => void show())));
  }
}

/** Goes on with a token. */
function enter(token: string): void {
  carryToken(token);
  void show();
}

/** There is nothing to take part in beside a run that one can only watch. */
function frameWatched(): void {
  document.querySelector("header nav")?.remove();
  document.querySelector(".brand")?.setAttribute("href", "/live");
  const foot = document.querySelector(".foot p");
  if (foot !== null) say(foot, OF_MEMBERS);
}

/** All federations, and the one that the address names, or the first. */
async function asked(): Promise<{ all: Summary[]; detail: Shown } | null> {
  const all = await federations();
  const { name: wanted } = read(location.hash);
  const name = all.some((one) => one.name === wanted) ? wanted : all[0]?.name;
  return name === undefined ? null : { all, detail: await fetchShown(name) };
}

function picker(all: readonly Summary[], name: string): HTMLElement {
  const select = h(
    "select",
    { id: "federation", onchange: () => (location.hash = `#/${encodeURIComponent(select.value)}`) },
    ...all.map((one) => h("option", { value: one.name, selected: one.name === name }, titled(one.title))),
  );
  return h("p", { class: "pick row" }, h("label", { for: "federation" }, "Federation"), select);
}

/** Follows the address, with the token that it may bring. */
function open(): void {
  enter(takeToken(location, history, sessionStorage));
}

window.addEventListener(
  "hashchange",
  () => void (location.hash === "#main" ? document.getElementById("main")?.focus() : open()),
);
open();
