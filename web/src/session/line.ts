/** The connection to the server: says hello, hears, and comes back by itself (docs/web-protocol.md, The connection). */
import { wordsOf } from "../wire/refusal.ts";

export interface Places {
  task: string;
  model: string;
  socket: string;
}

export function placesOf(server: string, federation: string): Places {
  const base = `${server.replace(/\/$/, "")}/api/federations/${encodeURIComponent(federation)}`;
  return { task: `${base}/task`, model: `${base}/model.bin`, socket: `${base.replace(/^http/, "ws")}/ws` };
}

export interface Welcome {
  client: number;
  known: boolean;
  /** keys that signed after the first, each with the signature of the one before */
  rotations?: string[];
  /** `pulse`: seconds between two signs of life, long enough for a plan on a slow line */
  limits?: { pulse?: number };
  status?: Record<string, unknown> & { round?: number };
}

export interface Closed {
  /** the federation is over, as it should be */
  ended: boolean;
  reason: string;
}

export interface LineOptions {
  url: string;
  socket: (url: string, protocols: string[]) => WebSocket;
  /** waiting times are multiplied by this */
  pace: number;
  /** milliseconds between two signs of life that the server is asked for, whatever it says; after one in vain the line is taken for dead */
  pulse?: number;
  hello: () => Promise<Record<string, unknown>>;
  welcome: (welcome: Welcome) => Promise<void>;
  message: (message: Record<string, unknown>) => void;
  request: (bytes: Uint8Array<ArrayBuffer>) => void;
  away: (retryInSeconds: number, reason: string) => void;
  closed: (closed: Closed) => void;
}

/** Refusals after which trying again is of no use without the person. */
const FINAL: Record<string, string> = {
  protocol: "this page and the server do not understand each other: reload the page",
  token: "this invitation is missing, forged or used up: ask for another one",
  proof: "the server takes this browser for somebody else",
  terms: "the terms of this federation have changed: reload the page and read them again",
  full: "all places in this federation are taken: try again later",
  address: "too many take part from your network address already: try again later, or from elsewhere",
  freed: "the operator of this server has freed your place: ask them, or start again later",
  replaced: "you took part in another place under the same identity, so this page has stopped",
};

/** Refusals with several causes: there, the server's own words say which. */
const SEVERAL: readonly string[] = ["protocol", "token"];

/** What a close says by itself, where the words before it were lost. */
const CODES: Record<number, string> = { 4401: "token", 4403: "proof", 4408: "replaced", 4409: "terms", 4410: "full", 4411: "finished", 4412: "address", 4414: "freed" };

const PULSE = 5_000;
/** milliseconds for the server to answer when the browser says that there is no network: it may be wrong */
const SOON = 2_000;
const NO_NETWORK = "this device has no network";
const LONGEST = 30;
/** milliseconds for the server to hear that somebody leaves */
const GOODBYE = 2_000;

export class Line {
  readonly #options: LineOptions;
  #socket: WebSocket | null = null;
  #welcomed = false;
  #attempts = 0;
  #retry: ReturnType<typeof setTimeout> | null = null;
  #refused: { code: string; reason: string; retry: number | null } | null = null;
  #ended = false;
  #finished = false;
  /** messages so far, and times in a row that a sign of life was asked for in vain */
  #heardSoFar = 0;
  #heardAt = 0;
  #inVain = 0;
  #lookedAt = 0;
  /** bytes that had not left yet when the last sign of life was asked for */
  #unsent = 0;
  /** requests of this connection without a response so far */
  #asked = 0;
  #pulse: number;
  #clock: ReturnType<typeof setInterval>;

  constructor(options: LineOptions) {
    this.#options = options;
    this.#pulse = options.pulse ?? PULSE;
    this.#clock = setInterval(() => this.#tick(), this.#pulse);
    globalThis.addEventListener?.("online", this.#wake);
    globalThis.addEventListener?.("offline", this.#unplugged);
    globalThis.document?.addEventListener("visibilitychange", this.#wake);
    this.#open();
  }

  get connected(): boolean {
    return this.#welcomed;
  }

  /** Responds to the oldest request of this connection; after a reconnect the server asks again for what it still wants. */
  respond(bytes: Uint8Array<ArrayBuffer>): boolean {
    if (!this.#welcomed || this.#asked === 0 || this.#socket?.readyState !== 1) return false;
    this.#asked -= 1;
    this.#socket.send(bytes);
    return true;
  }

  say(message: Record<string, unknown>): void {
    if (this.#welcomed && this.#socket?.readyState === 1) this.#socket.send(JSON.stringify(message));
  }

  /** Says that the place is given up, and closes; whether the server has heard it. */
  async leave(): Promise<boolean> {
    const socket = this.#socket;
    if (!this.#welcomed || socket?.readyState !== 1) return false;
    const closed = new Promise<boolean>((resolve) => {
      socket.onclose = ({ wasClean }) => resolve(wasClean); // clean: what was sent before has arrived
      setTimeout(() => resolve(false), GOODBYE * this.#options.pace);
    });
    this.say({ type: "leave" });
    this.close();
    return closed;
  }

  close(): void {
    if (this.#finished) return;
    this.#finished = true;
    clearInterval(this.#clock);
    if (this.#retry) clearTimeout(this.#retry);
    globalThis.removeEventListener?.("online", this.#wake);
    globalThis.removeEventListener?.("offline", this.#unplugged);
    globalThis.document?.removeEventListener("visibilitychange", this.#wake);
    this.#welcomed = false;
    this.#socket?.close(1000);
  }

  #open(): void {
    if (this.#finished) return;
    this.#retry = null;
    this.#refused = null;
    this.#asked = 0;
    const socket = this.#options.socket(this.#options.url, ["sordino.2"]);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    this.#inVain = 0;
    this.#unsent = 0;
    this.#lookedAt = Date.now();
    this.#heardAt = Date.now();
    socket.onopen = async () => {
      try {
        const hello = JSON.stringify(await this.#options.hello());
        if (socket.readyState === 1) socket.send(hello);
      } catch (error) {
        if (socket === this.#socket) this.#refused = { code: "", reason: wordsOf(error), retry: null }; // not the server's fault
        socket.close();
      }
    };
    socket.onmessage = ({ data }) => this.#heard(socket, data as string | ArrayBuffer);
    socket.onclose = ({ code }) => this.#lost(socket, code);
  }

  #heard(socket: WebSocket, data: string | ArrayBuffer): void {
    if (socket !== this.#socket || this.#finished) return;
    this.#heardSoFar += 1;
    this.#heardAt = Date.now();
    this.#inVain = 0;
    if (typeof data !== "string") {
      if (!this.#welcomed) return;
      this.#asked += 1;
      this.#options.request(new Uint8Array(data));
      return;
    }
    const message = parsed(data);
    if (message["type"] === "welcome") {
      this.#welcomed = true;
      this.#attempts = 0;
      this.#beat((message as unknown as Welcome).limits?.pulse);
      this.#options.welcome(message as unknown as Welcome).catch((error: unknown) => this.#finish(wordsOf(error)));
    } else if (message["type"] === "refused") {
      this.#refused = { code: String(message["code"]), reason: String(message["reason"] ?? ""), retry: Number(message["retry"]) || null };
    } else if (message["type"] === "ended") {
      this.#ended = true;
      this.#options.message(message);
    } else this.#options.message(message);
  }

  #lost(socket: WebSocket, code: number): void {
    if (socket !== this.#socket || this.#finished) return;
    this.#welcomed = false;
    const { code: why = CODES[code] ?? "", reason = "", retry = null } = this.#refused ?? {};
    if (this.#ended || why === "finished") {
      this.close();
      return this.#options.closed({ ended: true, reason: "the federation is over" });
    }
    if (why in FINAL) return this.#finish(FINAL[why]!, SEVERAL.includes(why) ? reason : "");
    const seconds = retry ?? Math.min(LONGEST, 2 ** this.#attempts) * (0.5 + Math.random() / 2);
    this.#attempts += 1;
    this.#retry = setTimeout(() => this.#open(), 1000 * seconds * this.#options.pace);
    return this.#options.away(seconds, reason || (offline() ? NO_NETWORK : "the server cannot be reached"));
  }

  #finish(words: string, said = ""): void {
    this.close();
    const detail = said && said !== words ? ` (the server says: ${said})` : "";
    this.#options.closed({ ended: false, reason: words + detail });
  }

  /**
   * Keeps the line awake, and notices one that died without a word. What counts is whether the server answers, not how much
   * time has passed: clocks jump, and in a tab that nobody looks at browsers do this once a minute only.
   */
  #tick(): void {
    if (this.#retry) return;
    const unsent = this.#socket?.bufferedAmount ?? 0;
    if (unsent < this.#unsent) this.#inVain = 0; // a long report is on its way, and the ping behind it
    this.#unsent = unsent;
    if (this.#inVain >= 1) return this.#drop();
    this.#inVain += 1;
    this.#look();
  }

  /** Goes by the pulse that the server names. */
  #beat(seconds: number | undefined): void {
    if (this.#options.pulse !== undefined || !Number.isFinite(seconds) || seconds! < 1) return;
    this.#pulse = 1000 * seconds!;
    clearInterval(this.#clock);
    this.#clock = setInterval(() => this.#tick(), this.#pulse);
  }

  /** Asks for a sign of life; after a sleep, when the line is likely to be dead, it is waited for a short while only. */
  #look(): void {
    const slept = Date.now() - this.#lookedAt > 2.2 * this.#pulse;
    this.#lookedAt = Date.now();
    this.say({ type: "ping" });
    if (slept) this.#expectWithin(this.#pulse / 2);
  }

  /** Gives the line up unless something is heard until then. */
  #expectWithin(milliseconds: number): void {
    const [socket, before] = [this.#socket, this.#heardSoFar];
    setTimeout(() => {
      if (!this.#finished && !this.#retry && socket === this.#socket && before === this.#heardSoFar) this.#drop();
    }, milliseconds);
  }

  /** The browser says that there is no network: see whether the server answers all the same. */
  readonly #unplugged = (): void => {
    if (this.#finished || this.#retry) return;
    this.say({ type: "ping" });
    this.#expectWithin(Math.min(SOON, this.#pulse / 2));
  };

  /** The network or the person is back: look at once. */
  readonly #wake = (): void => {
    if (this.#finished || globalThis.document?.hidden) return;
    if (this.#retry) {
      clearTimeout(this.#retry);
      this.#open();
    } else this.#look();
  };

  #drop(): void {
    const socket = this.#socket;
    if (!socket) return;
    const silent = Math.round(Math.max(0, Date.now() - this.#heardAt) / 1000);
    this.#refused ??= { code: "", reason: offline() ? NO_NETWORK : `the server has not answered for ${silent} seconds`, retry: null };
    socket.onclose = null;
    socket.close();
    this.#lost(socket, 1006);
  }
}

function offline(): boolean {
  return globalThis.navigator?.onLine === false;
}

function parsed(text: string): Record<string, unknown> {
  try {
    const message: unknown = JSON.parse(text);
    return typeof message === "object" && message !== null ? (message as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}
