import { once } from "node:events";
import { type RequestListener, type Server, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { SILENCE, fetched, read } from "./fetching.ts";

/** A server that does with a request whatever the test wants. */
let server: Server;
let address: string;
const serve = (listener: RequestListener): void => void server.on("request", listener);

beforeEach(async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  server = createServer();
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  address = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
});
afterEach(() => {
  vi.useRealTimers();
  server.closeAllConnections();
  server.close();
});

const ending = (asked: Promise<unknown>): Promise<string> => asked.then(() => "answered", (error: Error) => error.message);

test.each([
  ["never answers", () => {}],
  ["stops in the middle of its answer", (_, response) => void response.writeHead(200, { "Content-Length": 100 }).write("half")],
] satisfies [string, RequestListener][])("a server that %s is given up, and the connection with it", async (_, listener) => {
  serve(listener);
  const end = ending(fetched(address));
  const [request] = (await once(server, "request")) as [import("node:http").IncomingMessage];
  await new Promise((resolve) => setImmediate(resolve));
  vi.advanceTimersByTime(SILENCE - 1);
  expect(await Promise.race([end, new Promise((resolve) => setImmediate(() => resolve("still waiting")))])).toBe("still waiting");
  const closed = once(request.socket, "close");
  await vi.waitFor(async () => {
    vi.advanceTimersByTime(SILENCE);
    expect(await Promise.race([end, ""])).toMatch(/^nothing came for 20 seconds: check your connection, sign in .* and try again$/);
  }, { timeout: 15_000 });
  await closed;
});

test("of an answer without an end, the head alone is waited for", async () => {
  serve((_, response) => void response.writeHead(200).write("and so on"));
  const request = once(server, "request");
  const { ok, bytes } = await fetched(address, { wanted: ({ ok }) => !ok });
  expect([ok, bytes.length]).toEqual([true, 0]);
  await once(((await request) as [import("node:http").IncomingMessage])[0].socket, "close");
});

test("an answer comes whole, with what the server says of it", async () => {
  const whole = Uint8Array.from({ length: 300_000 }, (_, k) => k % 251);
  serve((_, response) => void response.writeHead(404, { "X-Sordino-Round": "7" }).end(whole));
  const { ok, status, headers, bytes } = await fetched(address);
  expect([ok, status, headers.get("X-Sordino-Round")]).toEqual([false, 404, "7"]);
  expect(Buffer.compare(bytes, whole)).toBe(0);
});

test("a network that puts a page of its own in the place of the answer is told from the server", async () => {
  serve((_, response) => void response.end("<html>Welcome to our hotel</html>"));
  const answer = await fetched(address);
  expect(() => read(answer)).toThrow(/is not the server of this page: perhaps the network asks you to sign in/);
});
