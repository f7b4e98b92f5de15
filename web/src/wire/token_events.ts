/** Server-sent events for somebody with a token. The browser's own `EventSource` could only put it into the address. */

import { bearing } from "./fetching.ts";

/** Milliseconds until a stream that broke off is asked for again. */
export const AGAIN = 3000;

/** As much of an `EventSource` as the pages use. */
export class TokenEvents extends EventTarget {
  /** 0 while it connects, 1 while it is open, 2 when it has ended for good */
  readyState = 0;
  onopen: (() => void) | null = null;
  onerror: (() => void) | null = null;
  private readonly ended = new AbortController();

  constructor(private readonly address: string, private readonly token: string) {
    super();
    void this.listen();
  }

  close(): void {
    this.readyState = 2;
    this.ended.abort();
  }

  private async listen(): Promise<void> {
    const headers = { Accept: "text/event-stream", ...bearing(this.token) };
    try {
      const response = await fetch(this.address, { headers, signal: this.ended.signal, cache: "no-store" });
      if (!response.ok || response.body === null) return this.fail(2);
      this.readyState = 1;
      this.onopen?.();
      await this.read(response.body.getReader());
    } catch {
      // it broke off, or was closed
    }
    if (this.readyState === 2) return;
    this.fail(0);
    setTimeout(() => this.readyState === 0 && void this.listen(), AGAIN);
  }

  private async read(reader: ReadableStreamDefaultReader<Uint8Array>): Promise<void> {
    const decoder = new TextDecoder();
    let text = "";
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      const blocks = (text + decoder.decode(piece.value, { stream: true })).split("\n\n");
      text = blocks.pop() ?? "";
      for (const block of blocks) this.tell(block);
    }
  }

  private tell(block: string): void {
    const fields = new Map(block.split("\n").map((line) => [line.split(": ", 1)[0] ?? "", line.slice(line.indexOf(": ") + 2)]));
    const event = fields.get("event");
    if (event !== undefined) this.dispatchEvent(new MessageEvent(event, { data: fields.get("data") ?? "" }));
  }

  private fail(state: 0 | 2): void {
    this.readyState = state;
    this.onerror?.();
  }
}
