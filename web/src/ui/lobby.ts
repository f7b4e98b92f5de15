/** Before the first round: who is here, who is awaited, when it begins, and how to invite others. */

import type { Summary } from "./api.ts";
import { fill, h, say } from "./dom.ts";
import { read } from "./place.ts";
import { qrView } from "./qr.ts";
import { counted, duration } from "./words.ts";

/** Who is here. Whoever looks at it is one of them. */
export interface Attendance {
  connected: number;
  /** participants without whom it does not begin */
  needed: number;
  places: number;
  /** seconds until the first round; null where no countdown runs */
  startsIn: number | null;
}

/** What is awaited, and for how long: a head line, and one sentence more. */
export function lobbyWords({ connected, needed, places, startsIn }: Attendance): [string, string] {
  const here = `${connected} of ${counted(places, "place")} ${connected === 1 ? "is" : "are"} taken.`;
  if (startsIn !== null && startsIn >= 0.5) {
    const late = connected < places ? " Whoever comes before that is in from the first round." : "";
    return [`Starts in ${duration(startsIn)}`, `${here}${late}`];
  }
  if (connected >= needed) return ["Starting", `${here} The first round begins in a moment.`];
  const rest = `${here} It begins with ${needed}, by itself: keep this page open.`;
  return [`Waiting for ${needed - connected} more`, rest];
}

/** The link that brings others here; null where everybody has an invitation of their own. */
export function invitation(
  { name, by_invitation, shared_link }: Pick<Summary, "name" | "by_invitation" | "shared_link">,
  { origin, href, hash }: Pick<Location, "origin" | "href" | "hash">,
): string | null {
  if (!by_invitation) return `${origin}/#/${encodeURIComponent(name)}`;
  return shared_link && read(hash).token !== "" ? href : null;
}

/** Whether an address leads to the very machine that it is opened on. */
export function isOnThisMachine(hostname: string): boolean {
  return ["localhost", "127.0.0.1", "[::1]"].includes(hostname) || hostname.endsWith(".localhost");
}

/** Dots are shown for so many places at most, and small ones from `MANY` on. */
const MOST_DOTS = 60;
const MANY = 13;

/** A dot for each place: one's own first, then those of others, then the free ones. */
export class PlacesView {
  readonly element = h("div", { class: "places", role: "img" });
  private shown = "";

  show({ connected, places }: Attendance): void {
    const key = `${connected} of ${places}`;
    if (key === this.shown) return;
    this.shown = key;
    const dots = Math.min(places, MOST_DOTS);
    this.element.classList.toggle("many", dots >= MANY);
    const kind = (k: number): string => (k === 0 ? "you" : k < connected ? "taken" : "free");
    this.element.setAttribute("aria-label", `${key} places taken. One of them is yours.`);
    fill(
      this.element,
      ...Array.from({ length: dots }, (_, k) => h("span", { class: `place ${kind(k)}` }, k === 0 && "you")),
      places > dots && h("span", { class: "small quiet" }, `and ${places - dots} more`),
    );
  }
}

/** How to bring others here: the link, as a QR code and as text. */
export function inviteView(link: string): HTMLElement {
  const done = h("span", { role: "status", class: "small quiet" });
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(link);
      say(done, "Copied.");
    } catch {
      say(done, "Mark the link and copy it: this browser does not let the page do it.");
    }
  };
  const share = (): void => void navigator.share({ title: document.title, url: link }).catch(() => undefined); // the person may change their mind
  const canShare = typeof navigator.share === "function";
  return h(
    "section",
    { class: "card invite", "aria-labelledby": "invite" },
    h("h2", { id: "invite" }, "Invite others"),
    h("p", { class: "small quiet" }, "Point the camera of a phone here, or send the link."),
    qrView(link),
    h("p", { class: "link" }, h("code", {}, link)),
    h(
      "div",
      { class: "row" },
      h("button", { type: "button", onclick: () => void copy() }, "Copy link"),
      canShare && h("button", { type: "button", onclick: share }, "Share…"),
      done,
    ),
    isOnThisMachine(new URL(link).hostname) &&
      h("p", { class: "small quiet" }, "This address works on this machine alone. Other devices need the server's own name."),
  );
}
