/** What the operator's view counts over all rounds. */

import type { Live, RoundEntry, Summary } from "../ui/api.ts";
import { over } from "../ui/front.ts";
import { counted, listed } from "../ui/words.ts";

/** Reports that came too late. What the server tells its operator counts those of whole rounds as well. */
export function lateReports(rounds: Iterable<RoundEntry>, live: Live | null): number {
  return live === null ? total(rounds, "late") : (live.strays["late"] ?? 0);
}

/** Reports that were refused. The server lists the newest alone, those of the open round among them. */
export function refusedReports(rounds: Iterable<RoundEntry>, live: Live | null): number {
  return Math.max(total(rounds, "refused"), live?.refused.length ?? 0);
}

/** Whom the federation waits for. */
export function waitingWords(
  summary: Pick<Summary, "state" | "participants" | "quorum">,
  { waiting_for }: Pick<Live, "waiting_for">,
): string {
  const missing = over(summary) ? 0 : summary.quorum - summary.participants;
  const more = `${counted(missing, "more participant")} ${missing === 1 ? "is" : "are"} needed.`;
  const named = `This round waits for ${listed(waiting_for.map((client) => `number ${client}`))}.`;
  const said = [waiting_for.length > 0 && named, missing > 0 && more].filter(Boolean);
  return said.length > 0 ? said.join(" ") : over(summary) ? "" : "Everybody who is needed is here.";
}

/** What it means to free places of people who are here (`connected` of them), or away. */
export function freeingWords(clients: readonly number[], connected: number): string {
  const whom = listed(clients.map((client) => `number ${client}`));
  const [places, who] = clients.length === 1 ? ["place", "It is"] : ["places", "They are"];
  const told =
    connected === 0
      ? `${who} away, and may get another place on coming back, if one is free.`
      : "Who is connected is told so, and its page stops.";
  return `The ${places} of ${whom} can then be taken by somebody else. ${told}`;
}

/** When a server was started that has been up for so many seconds: a moment stays right while nothing is told. */
export function startWords(uptime: number, now: number): string {
  const began = new Date(now - 1000 * uptime);
  const day = uptime < 43_200 ? {} : ({ day: "numeric", month: "short" } as const);
  return began.toLocaleString("en-GB", { ...day, hour: "2-digit", minute: "2-digit" });
}

/** How many answers of a kind came in all rounds. */
export function total(rounds: Iterable<RoundEntry>, what: "late" | "refused" | "declined"): number {
  return [...rounds].reduce((sum, entry) => sum + (entry[what] ?? 0), 0);
}
