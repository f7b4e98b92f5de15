// Builds the benchmark's page, opens it in Chromium, and prints one line of JSON for each measurement.
//   node web/bench/run.mjs WANTED.json     {"tasks": [..], "heads": [..], "seconds": 5, "links": [..], "executable", "browser", "golden"}
// With "golden", the file tests/golden/web.json, it says how far known networks lie from PyTorch's instead, on the "device"
// that is named ("wasm", or "webgpu", for which Chromium brings a graphics card made of software).
import { readFile } from "node:fs/promises";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import playwright from "playwright-core";
import { build } from "vite";

const wanted = JSON.parse(readFileSync(process.argv[2], "utf8"));
const root = fileURLToPath(new URL(".", import.meta.url));
const out = mkdtempSync(join(tmpdir(), "page-speed-"));
const CARD = wanted.device === "webgpu" ? ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"] : ["--disable-gpu"];
const FLAGS = ["--no-sandbox", ...CARD, "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"];
const TYPES = { ".html": "text/html", ".js": "text/javascript" };

function serve() {
  const headers = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };
  const server = createServer(async (request, response) => {
    const path = request.url === "/" ? "/index.html" : request.url;
    const body = await readFile(join(out, path)).catch(() => null);
    response.writeHead(body ? 200 : 404, { ...headers, "Content-Type": TYPES[extname(path)] ?? "application/octet-stream" });
    response.end(body);
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server)));
}

const tell = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);

async function built() {
  await build({ root, base: "./", logLevel: "error", configFile: false, worker: { format: "es" },
    build: { outDir: out, emptyOutDir: true, target: "es2022", chunkSizeWarningLimit: 5000 } });
  return serve();
}

async function agreement(browser, server) {
  const { networks, key_hex, batch } = JSON.parse(readFileSync(wanted.golden, "utf8"));
  const page = await browser.newPage();
  await page.goto(`http://127.0.0.1:${server.address().port}/`);
  const key = [...Buffer.from(key_hex, "hex")];
  const found = await page.evaluate((given) => globalThis.agreement(...given), [networks, key, batch, wanted.device]);
  tell({ kind: "agreement", ...found });
}

async function speeds(browser, server) {
  for (const { name, task } of wanted.tasks) {
    for (const kind of ["page", "private", "tensorflow"]) {
      const context = await browser.newContext();
      const page = await context.newPage();
      await page.goto(`http://127.0.0.1:${server.address().port}/`);
      const speed = await page.evaluate(([which, given, seconds]) => globalThis.speeds[which](given, seconds), [kind, task, wanted.seconds]);
      tell({ name, kind, ...speed });
      await context.close();
    }
  }
}

async function heads(browser, server) {
  for (const { name, job } of wanted.heads) {
    const page = await browser.newPage();
    await page.goto(`http://127.0.0.1:${server.address().port}/`);
    tell({ name, kind: "head", ...(await page.evaluate((given) => globalThis.head(...given), [job, wanted.seconds])) });
    await page.close();
  }
}

/** From opening a federation's page to the first report that leaves it, with one click as soon as there is a button. */
async function firstReport(browser, link) {
  const context = await browser.newContext();
  const page = await context.newPage();
  const sent = new Promise((resolve) => {
    page.on("websocket", (socket) => socket.on("framesent", ({ payload }) => typeof payload !== "string" && resolve(Date.now())));
  });
  const begun = Date.now();
  await page.goto(link);
  await page.click("#join");
  const shown = Date.now();
  await page.check("#agree");
  await page.click("text=Start taking part");
  const clicked = Date.now();
  const report = await sent;
  tell({ kind: "first report", shown: (shown - begun) / 1000, clicked: (clicked - begun) / 1000, report: (report - begun) / 1000 });
  await context.close();
}

const kind = wanted.browser ?? "chromium";
const browser = await playwright[kind].launch({ executablePath: wanted.executable, args: kind === "chromium" ? FLAGS : [] });
const server = await built();
try {
  for (const part of wanted.golden ? [agreement] : [heads, speeds]) await part(browser, server);
  for (const link of wanted.links ?? []) await firstReport(browser, link);
} finally {
  await browser.close();
  server.close();
  rmSync(out, { recursive: true, force: true });
}
