/** My record: every report that left this browser at this address, from its own storage. No server is asked. */

import { readRecord, type OwnRecord, type RecordLine } from "../session/session.ts";
import { h, saveFile } from "./dom.ts";
import { clock, counted, epsilon, size, terms } from "./words.ts";

const STATES: Record<RecordLine["sent"], string> = { kept: "not sent yet", sent: "sent", received: "arrived" };

export async function recordView(): Promise<HTMLElement> {
  const record = await readRecord();
  const groups = groupsOf(record.lines);
  return h(
    "div",
    { class: "record" },
    h("h1", {}, "My record"),
    h(
      "p",
      { class: "lead" },
      record.lines.length === 0
        ? "Nothing has left this browser at this address yet. Every report will be written down here before it is sent."
        : `${counted(record.lines.length, "report")} left this browser at this address, ${size(record.lines.reduce((sum, { bytes }) => sum + bytes, 0))} in all.`,
    ),
    h(
      "p",
      { class: "quiet" },
      "Your page writes this record itself, before anything is sent, and keeps it in this browser only. Your budget is counted from it. It holds no examples. Clearing this site's data deletes it. Other addresses have records of their own.",
    ),
    ...groups.map(groupView),
    record.lines.length > 0 && checkView(record),
  );
}

/** Lines of one federation and one data set, in the order of their names' first appearance. */
export function groupsOf(lines: readonly RecordLine[]): RecordLine[][] {
  const groups = new Map<string, RecordLine[]>();
  for (const line of lines) {
    const key = JSON.stringify([line.federation, line.dataset]);
    groups.set(key, [...(groups.get(key) ?? []), line]);
  }
  return [...groups.values()];
}

/** The record as a file, with what its chain of hashes is over: whoever has the last head can check every line. */
export function fileOf(record: OwnRecord, now: Date): string {
  const check =
    "head = SHA-256 of the canonical JSON (sorted keys, no spaces) of [head of the line before, index, dataset, federation, round, plan, releases, time, hash]; before the first line stand 64 zeros; hash = SHA-256 of the report's bytes";
  return JSON.stringify({ about: "Sordino: reports that left one browser", written: now.toISOString(), head: record.head, sound: record.sound, check, lines: record.lines }, null, 1);
}

function checkView(record: OwnRecord): HTMLElement {
  const save = (): void => saveFile("sordino-record.json", fileOf(record, new Date()));
  return h(
    "section",
    { class: "card stack", "aria-label": "The whole record" },
    h(
      "p",
      { class: record.sound ? "note good" : "note bad" },
      record.sound
        ? "The record is whole: every line fits the hashes of all lines before it."
        : "The record was changed from outside: its lines do not fit their hashes. This page sends nothing more with it.",
    ),
    h("p", { class: "small" }, "Head of the chain: ", h("code", { id: "record-head" }, record.head ?? "")),
    h("p", {}, h("button", { type: "button", class: "main", id: "save-record", onclick: save }, "Download as JSON")),
  );
}

function groupView(lines: RecordLine[]): HTMLElement {
  const [first] = lines as [RecordLine];
  const name = `${first.federation}${first.dataset === "own" ? "" : " (its public sample)"}`;
  const head = ["round", "time", "size", "state", "epsilon"];
  return h(
    "section",
    { class: "card", "aria-label": name },
    h("h2", {}, name),
    h(
      "p",
      { class: "small quiet" },
      `Epsilon is that after each report: of everything told so far of ${first.dataset === "own" ? "your own examples, in every federation" : "this sample to this federation"} (${terms(first.terms)}).`,
    ),
    h(
      "div",
      { class: "scroll sent", tabindex: 0, role: "region", "aria-label": `Reports to ${name}` },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, ...head.map((title) => h("th", { scope: "col" }, title)))),
        h("tbody", {}, ...[...lines].reverse().map(row)),
      ),
    ),
  );
}

/** The time of day, with the day where that is another one. */
export function when(time: number, now: Date): string {
  const day = new Date(time);
  return day.toDateString() === now.toDateString() ? clock(time) : `${day.toLocaleDateString("en-GB")}, ${clock(time)}`;
}

function row(line: RecordLine): HTMLElement {
  return h(
    "tr",
    { "data-federation": line.federation, "data-round": line.round, "data-head": line.head, "data-sent": line.sent },
    h("td", {}, line.round),
    h("td", {}, when(line.time, new Date())),
    h("td", {}, size(line.bytes)),
    h("td", {}, STATES[line.sent]),
    h("td", {}, line.epsilon === null ? "no bound" : epsilon(line.epsilon)),
  );
}
