/** What the operator's view counts over all rounds. */

import type { Live, RoundEntry } from "../ui/api.ts";

/** Reports that came too late. What the server tells its operator counts those of whole rounds as well. */
export function lateReports(rounds: Iterable<RoundEntry>, live: Live | null): number {
  return live === null ? total(rounds, "late") : (live.strays["late"] ?? 0);
}

/** Reports that were refused. The server lists the newest alone, those of the open round among them. */
export function refusedReports(rounds: Iterable<RoundEntry>, live: Live | null): number {
  return Math.max(total(rounds, "refused"), live?.refused.length ?? 0);
}

function total(rounds: Iterable<RoundEntry>, what: "late" | "refused"): number {
  return [...rounds].reduce((sum, entry) => sum + (entry[what] ?? 0), 0);
}
