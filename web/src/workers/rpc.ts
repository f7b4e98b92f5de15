/** Calls between the page and its workers: every call is answered once, errors keep their words, and news come in between. */
import { Refused, wordsOf } from "../wire/refusal.ts";

// Methods of any arguments: what they are is written where they are defined.
export type Methods = Record<string, (...given: any[]) => unknown>;
type Result<F> = F extends (...given: any[]) => infer R ? Promise<Awaited<R>> : never;

/** What the other side offers, with every result awaited. */
export type Remote<T> = { [K in keyof T]: T[K] extends (...given: infer A) => unknown ? (...given: A) => Result<T[K]> : never };

interface Port {
  postMessage(message: unknown, transfer?: Transferable[]): void;
  onmessage: ((event: MessageEvent) => void) | null;
}

type Message =
  | { call: number; method: string; given: unknown[] }
  | { answer: number; value: unknown }
  | { answer: number; error: string; refused: boolean }
  | { news: unknown }
  | { begun: true };

/**
 * In a worker: answers calls with these methods, and hands over the arrays in a result that `handed` names: a message that copied
 * them could be too long. The result sends news to the page.
 */
export function serve(methods: Methods, port: Port = self as unknown as Port, handed: (value: any) => Transferable[] = () => []): (news: unknown) => void {
  port.onmessage = async ({ data }: MessageEvent<Message>) => {
    if (!("call" in data)) return;
    try {
      const method = methods[data.method];
      if (!method) throw new Error(`there is no ${data.method}`);
      const value = await method(...data.given);
      port.postMessage({ answer: data.call, value }, handed(value));
    } catch (error) {
      port.postMessage({ answer: data.call, error: wordsOf(error), refused: error instanceof Refused });
    }
  };
  port.postMessage({ begun: true });
  return (news) => port.postMessage({ news });
}

/** Milliseconds for a worker's file, a few ten kilobytes, to come and to begin; browsers themselves wait for ever. */
export const BEGINNING = 60_000;

const ENDED = "this worker was ended";

export interface Connection<T> {
  remote: Remote<T>;
  /** Ends the worker; calls that wait fail. */
  close(): void;
}

/** In the page: calls into a worker. */
export function connect<T>(worker: Worker, onNews: (news: any) => void = () => {}): Connection<T> {
  const waiting = new Map<number, { resolve: (value: unknown) => void; reject: (error: Error) => void }>();
  let last = 0;
  let ended = false;
  let heard = false;
  let unable: Error | null = null; // why the worker never began, as where its file is gone
  const failAll = (error: Error) => {
    for (const { reject } of waiting.values()) reject(error);
    waiting.clear();
  };
  const late = setTimeout(() => {
    unable = new Error(`a part of this page did not come within ${BEGINNING / 1000} seconds: check your connection and try again`);
    failAll(unable);
  }, BEGINNING);
  worker.onmessage = ({ data }: MessageEvent<Message>) => {
    heard = true;
    clearTimeout(late);
    if ("news" in data) return onNews(data.news);
    if (!("answer" in data)) return undefined;
    const call = waiting.get(data.answer);
    waiting.delete(data.answer);
    if ("error" in data) return call?.reject(data.refused ? new Refused(data.error) : new Error(data.error));
    return call?.resolve(data.value);
  };
  worker.onerror = (event) => {
    const error = new Error(event.message || "a worker of this page could not be started: reload the page");
    if (!heard) unable = error;
    failAll(error);
  };
  const remote = new Proxy({}, {
    get: (_, method) => (typeof method === "string" && method !== "then")
      ? (...given: unknown[]) => new Promise((resolve, reject) => {
          if (ended || unable) return reject(unable ?? new Error(ENDED)); // it answers nothing
          waiting.set((last += 1), { resolve, reject });
          worker.postMessage({ call: last, method, given });
        })
      : undefined,
  }) as Remote<T>;
  return {
    remote,
    close: () => {
      ended = true;
      clearTimeout(late);
      worker.terminate();
      failAll(new Error(ENDED));
    },
  };
}
