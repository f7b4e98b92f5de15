import { MessageChannel } from "node:worker_threads";
import { afterEach, expect, test, vi } from "vitest";
import { Refused } from "../wire/refusal.ts";
import { BEGINNING, connect, serve } from "./rpc.ts";

const open: MessageChannel[] = [];
afterEach(() => open.splice(0).forEach(({ port1, port2 }) => [port1, port2].forEach((port) => port.close())));

/** Two ends of a channel in the place of a page and its worker. */
function pair(methods: Parameters<typeof serve>[0], onNews?: (news: any) => void) {
  const channel = new MessageChannel();
  open.push(channel);
  const wrapped = (port: any) => {
    const end: any = { postMessage: (message: unknown) => port.postMessage(message), onmessage: null, terminate: () => port.close() };
    port.on("message", (data: unknown) => end.onmessage?.({ data }));
    return end;
  };
  const tell = serve(methods, wrapped(channel.port2));
  const { remote, close } = connect(wrapped(channel.port1), onNews);
  return { tell, remote: remote as any, close };
}

test("calls are answered each by itself, in whatever order they end", async () => {
  const { remote } = pair({ wait: async (ms: number) => (await new Promise((r) => setTimeout(r, ms)), ms) });
  expect(await Promise.all([remote.wait(20), remote.wait(1)])).toEqual([20, 1]);
});

test("arrays of a result are handed over, not copied", async () => {
  const sent: unknown[][] = [];
  const port = { postMessage: (...given: unknown[]) => void sent.push(given), onmessage: null as any };
  const made = new Float32Array(3);
  serve({ make: () => made }, port, (value) => [value.buffer]);
  await port.onmessage({ data: { call: 1, method: "make", given: [] } });
  expect(sent.at(-1)).toEqual([{ answer: 1, value: made }, [made.buffer]]);
});

test("errors keep their words, and refusals stay refusals", async () => {
  const { remote } = pair({
    refuse: () => { throw new Refused("not agreed to"); },
    fail: () => { throw new RangeError("too large"); },
  });
  await expect(remote.refuse()).rejects.toBeInstanceOf(Refused);
  await expect(remote.refuse()).rejects.toThrow("not agreed to");
  await expect(remote.fail()).rejects.toThrow("too large");
  await expect(remote.other()).rejects.toThrow("there is no other");
});

test("news come between, and a worker that was ended fails the calls that wait", async () => {
  const news: unknown[] = [];
  const { remote, tell, close } = pair({ never: () => new Promise(() => {}) }, (each) => news.push(each));
  tell({ step: 1 });
  await vi.waitFor(() => expect(news).toEqual([{ step: 1 }]), { timeout: 15_000 });
  const waiting = remote.never();
  close();
  await expect(waiting).rejects.toThrow("was ended");
  await expect(remote.never()).rejects.toThrow("was ended"); // and those that come later
});

test("a worker that never began fails every call, not only those that wait", async () => {
  const worker: any = { postMessage: () => {}, onmessage: null, onerror: null, terminate: () => {} };
  const { remote } = connect<any>(worker);
  worker.onerror({ message: "" });
  await expect((remote as any).open()).rejects.toThrow("reload the page");
});

test("an error of a worker that has spoken fails the calls that wait alone", async () => {
  const worker: any = { postMessage: () => {}, onmessage: null, onerror: null, terminate: () => {} };
  const { remote } = connect<any>(worker);
  const first = (remote as any).open();
  worker.onmessage({ data: { answer: 1, value: 7 } });
  expect(await first).toBe(7);
  const second = (remote as any).open();
  worker.onerror({ message: "broken" });
  await expect(second).rejects.toThrow("broken");
  const third = (remote as any).open();
  worker.onmessage({ data: { answer: 3, value: 8 } });
  expect(await third).toBe(8);
});

test("a worker whose file does not come is given up; one that has begun may take its time", async () => {
  vi.useFakeTimers();
  const silent: any = { postMessage: () => {}, onmessage: null, onerror: null, terminate: () => {} };
  const begun: any = { ...silent };
  const ends = [silent, begun].map((worker) =>
    (connect<any>(worker).remote as any).open().catch((error: Error) => error.message));
  serve({}, { postMessage: (data) => begun.onmessage({ data }), onmessage: null });
  await vi.advanceTimersByTimeAsync(10 * BEGINNING);
  expect(await ends[0]).toMatch(/did not come within 60 seconds: check your connection and try again/);
  expect(await Promise.race([ends[1], "still at work"])).toBe("still at work");
  vi.useRealTimers();
});
