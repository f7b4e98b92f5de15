/** The page of a participant: which view is shown, and what this browser can do. */

import {
  capabilities,
  giveBackPlaces,
  hasPlacesToGiveBack,
  openSession,
  pageBuild,
  type Capabilities,
} from "../session/session.ts";
import { federation, federations, follow, type Summary, type Task } from "./api.ts";
import { fill, h, say, type Child } from "./dom.ts";
import { FederationView, type Begin } from "./federation.ts";
import { frontView, over } from "./front.ts";
import { LateView } from "./late.ts";
import { read, RECORD } from "./place.ts";
import { recordView } from "./record_view.ts";
import { refresh } from "./refreshing.ts";
import { forget, forgetSoon, remembered, remember } from "./remembering.ts";
import type { Build } from "./statement_view.ts";
import { TrainingView } from "./training.ts";
import { trouble, tryAgain } from "./trouble.ts";
import { awaited } from "./waiting.ts";
import { keepAwake } from "./waking.ts";
import { titled } from "./words.ts";

const view = document.getElementById("view") as HTMLElement;
const main = document.getElementById("main") as HTMLElement;
const announcements = document.getElementById("announcements") as HTMLElement;

/** Ends the part that this page takes, if it takes one. */
let stopTaking: () => void = () => undefined;
let stopFollowing: () => void = () => undefined;
/** Shows the part of a view that an entry of the history is about. */
let followHistory: (state: unknown) => void = () => undefined;
let shown = 0;
/** federations of this server, as far as this page has heard */
let hosted = 1;
/** the view that waits, with its address, while the record is read */
let aside: { hash: string; nodes: Node[]; title: string } | null = null;
let record: Node[] = [];

/** Which federation is meant, and the invitation that may come with it: /#/NAME, or the link of an invitation. */
function place(): { name: string; token: string; key: string } {
  return read(aside?.hash ?? location.hash);
}

/** A view that was just put up is read, and seen, from its beginning. */
function fromTheTop(): void {
  main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

/** Shows a view, or has it ready for when the record was read. */
function put(...content: Child[]): void {
  fill(view, ...content);
  if (aside === null) return;
  aside.nodes = [...view.childNodes];
  fill(view, ...record);
}

function announce(text: string): void {
  say(announcements, text);
}

async function show(): Promise<void> {
  const turn = ++shown;
  const { name, token } = place();
  stopFollowing();
  try {
    const able = await capabilities();
    const current = (): boolean => turn === shown;
    const waited = (): boolean => current() && location.hash !== RECORD;
    const found = name === "" ? await awaited(federations(), view, waited) : null;
    if (!current()) return;
    hosted = found?.length ?? hosted;
    const chosen = name || (found?.length === 1 ? found[0]!.name : "");
    if (chosen === "") showFront(found ?? [], able);
    else {
      const content = await awaited(one(chosen, token, able, current), view, waited);
      if (current()) put(...ableWords(able), content);
    }
    if (!waited()) return;
    document.title = `${view.querySelector("h1")?.textContent ?? "Sordino"} · Sordino`;
  } catch (problem) {
    if (turn === shown) put(failure(problem, () => void show()));
  }
}

/** The first view, kept up to date; whoever is on a link stays on it. */
function showFront(found: readonly Summary[], able: Capabilities): void {
  const draw = (some: readonly Summary[]): void => {
    const on = view.contains(document.activeElement) ? document.activeElement?.getAttribute("href") : null;
    put(...ableWords(able), frontView(some));
    if (on) view.querySelector<HTMLElement>(`a[href="${CSS.escape(on)}"]`)?.focus({ preventScroll: true });
  };
  draw(found);
  stopFollowing = refresh(found, federations, draw);
}

async function one(name: string, token: string, able: Capabilities, current: () => boolean): Promise<HTMLElement> {
  const [detail, build] = await Promise.all([federation(name), built()]);
  if (!current()) return view;
  const now = async (): Promise<Summary> => (await federations()).find((other) => other.name === name) ?? detail;
  if (over(detail)) {
    const late = new LateView(detail, build, hosted > 1);
    stopTaking = () => late.close();
    stopFollowing = refresh<Summary>(detail, now, (summary) => {
      if (over(summary)) return;
      late.close();
      void show(); // it begins anew
    });
    return late.element;
  }
  const begin = (what: Begin): void => take(name, what, detail.task);
  const kept = remembered(name, detail.task.terms);
  if (kept !== null && kept.data === "sample" && able.able) {
    queueMicrotask(() => begin({ data: { kind: "sample" }, choice: kept.choice, token: kept.token }));
  }
  const here = new FederationView(detail, {
    build,
    token: token || (kept?.token ?? ""),
    able: able.able,
    several: hosted > 1,
    welcome: kept?.data === "own" ? BACK : "",
    begin,
  });
  stopTaking = () => here.close();
  followHistory = (state) => here.follow(state);
  stopFollowing = refresh<Summary>(detail, now, (summary) => {
    if (!over(summary)) return here.tell(summary);
    here.close();
    void show();
  });
  return here.element;
}

/** What somebody reads who comes back with examples of their own. */
const BACK =
  "You were taking part when this page was closed. Your examples were only in its memory: choose them again to go on. What you have spent is remembered.";

/** Begins, or says why not; then the same examples, which are in memory only, can be tried with again. */
function take(name: string, what: Begin, agreed: Task): void {
  const turn = ++shown;
  taking(name, what, agreed, turn).catch((problem) => {
    if (turn === shown) put(failure(problem, () => take(name, what, agreed))); // else another view is shown by now
  });
}

/** `agreed` is the task of the view in which the person agreed: with any other, nothing begins. */
async function taking(name: string, what: Begin, agreed: Task, turn: number): Promise<void> {
  stopFollowing();
  const asked = Promise.all([federation(name), built()]);
  const [detail, build] = await awaited(asked, view, () => turn === shown);
  if (turn !== shown) return;
  stopTaking();
  followHistory = () => undefined;
  remember(name, agreed.terms, what);
  const { key } = place();
  const running = openSession({
    server: location.origin,
    federation: name,
    data: what.data,
    choice: what.choice,
    task: agreed,
    ...(what.token === "" ? {} : { token: what.token }),
    ...(key === "" ? {} : { key }),
  });
  const awake = keepAwake();
  stopTaking = () => {
    awake();
    running.close();
  };
  const training = new TrainingView(running, { detail, build, announce, left: () => leave(), again: () => again() });
  const leave = (): void => {
    if (turn !== shown) return; // the server was slow to hear of it, and another view is shown by now
    forget();
    stopTaking();
    void show().then(fromTheTop);
  };
  const again = (): void => take(name, what, agreed);
  running.subscribe((event) => {
    if (event.type === "ended") void federation(name).then((now) => training.noteEnd(now), () => undefined);
    if (
      event.type === "ended" ||
      (event.type === "error" && event.final) ||
      (event.type === "refused" && event.final)
    ) {
      forgetSoon(() => turn === shown);
      awake();
    }
  });
  stopFollowing = follow(detail, {
    round: (entry) => training.noteRound(entry),
    reach: (reach, why) => training.noteReach(reach, why),
    renewed: () => training.element.prepend(renewed(leave)),
  });
  put(training.element);
  document.title = `Taking part · ${titled(detail.title)} · Sordino`;
  fromTheTop();
  await running.start().catch(() => undefined); // the view has heard of it as an event
}

/** What whoever took part reads when the federation begins anew: nothing is agreed to by itself. */
function renewed(back: () => void): HTMLElement {
  return h(
    "div",
    { class: "note good", role: "status", id: "renewed" },
    h("p", {}, "This federation begins anew. You are not part of it until you join again."),
    h("p", {}, h("button", { type: "button", class: "main", onclick: back }, "Look at it")),
  );
}

async function built(): Promise<Build | null> {
  return pageBuild().catch(() => null);
}

function ableWords(able: Capabilities): Child[] {
  if (able.able && able.notes.length === 0) return [];
  const kind = able.able ? "note" : "note bad";
  return [
    h(
      "div",
      { class: kind, role: able.able ? "note" : "alert", id: "able" },
      !able.able && h("p", {}, h("b", {}, "This browser cannot take part as it is.")),
      h("ul", {}, ...able.notes.map((note) => h("li", {}, note))),
    ),
  ];
}

function failure(problem: unknown, again: () => void): HTMLElement {
  return trouble(
    problem,
    hasPlacesToGiveBack() &&
      h(
        "p",
        { class: "note" },
        "You have left, and nothing more leaves this page. The server hears of it, and can give your place to another, when it can be reached: from this page, or from the next one that you open here.",
      ),
    h(
      "p",
      { class: "row" },
      tryAgain(again),
      h("a", { href: "#/" }, "All federations"),
    ),
  );
}

async function foot(): Promise<void> {
  const build = await built();
  const element = document.getElementById("foot") as HTMLElement;
  fill(
    element,
    h(
      "p",
      {},
      "Sordino trains one model across many parties that do not trust the server. This page loads nothing from elsewhere and sets no cookies. It keeps your budget and your record in this browser only.",
    ),
    build !== null && h("p", {}, "Fingerprint of this page: ", h("code", {}, build.hash.slice(0, 16)), "…"),
  );
}

/** The record, in place of what is shown; whoever takes part goes on doing so. */
async function showRecord(from: string): Promise<void> {
  aside ??= { hash: from, nodes: [...view.childNodes], title: document.title };
  const content = await recordView().catch((problem: unknown) => failure(problem, () => void showRecord(from)));
  if (location.hash !== RECORD) return;
  record = [content];
  fill(view, content);
  document.title = "My record · Sordino";
}

/** Goes to what the address says now. */
async function go(from: string): Promise<void> {
  if (location.hash === RECORD) return showRecord(from);
  const waiting = aside;
  aside = null;
  if (waiting !== null && waiting.hash === location.hash && waiting.nodes.length > 0) {
    view.replaceChildren(...waiting.nodes);
    document.title = waiting.title;
    return;
  }
  stopTaking();
  forget();
  await show();
}

window.addEventListener("hashchange", ({ oldURL }) => void go(new URL(oldURL).hash).then(fromTheTop));
document.querySelector(".skip")?.addEventListener("click", (event) => {
  event.preventDefault(); // the address says what is shown, and stays
  main.focus();
});
window.addEventListener("popstate", ({ state }) => followHistory(state));

if (location.hash === RECORD) void showRecord(RECORD);
else void show();
void foot();
giveBackPlaces();
