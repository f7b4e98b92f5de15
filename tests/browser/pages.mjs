// What all scenarios share: a browser, participants in contexts of their own, and everything that leaves them.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { connect, createServer } from "node:net";
import { fileURLToPath } from "node:url";
import { dirname, join } from "node:path";

const web = join(dirname(fileURLToPath(import.meta.url)), "../../web");
const require = createRequire(join(web, "package.json"));
const playwright = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

export const wanted = JSON.parse(process.argv[2] ?? "{}");

/** Says something to the test: one JSON object a line. */
export function tell(what) {
  process.stdout.write(`${JSON.stringify(what)}\n`);
}

export async function launch() {
  const kind = wanted.browser ?? "chromium";
  const flags = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--mute-audio",
    "--host-resolver-rules=MAP elsewhere.test 127.0.0.1",
  ];
  return playwright[kind].launch({
    executablePath: wanted.executable,
    ...(kind === "chromium" ? { args: flags } : {}),
  });
}

/** Somebody with a browser of their own: nothing is shared with the others. */
export async function participant(browser, options = {}) {
  const context = await browser.newContext({
    viewport: { width: 1200, height: 900 },
    reducedMotion: "reduce",
    ...options,
  });
  const page = await context.newPage();
  const one = { context, page, sent: [], received: [], requests: [], problems: [] };
  page.on("websocket", (socket) => {
    const packed = ({ payload }) =>
      typeof payload === "string" ? { text: payload } : { binary: payload.toString("base64") };
    socket.on("framesent", (frame) => one.sent.push(packed(frame)));
    socket.on("framereceived", (frame) => one.received.push(packed(frame)));
  });
  context.on("request", (request) =>
    one.requests.push({ method: request.method(), url: request.url(), body: request.postData() }),
  );
  page.on("pageerror", (error) => one.problems.push(`${error.message}`));
  page.on("console", (message) => {
    if (message.type() === "error") one.problems.push(message.text());
  });
  return one;
}

/** A slower device: the page's own thread gets one slice of time in so many. */
export async function throttle({ context, page }, times) {
  if (wanted.browser !== "chromium") return; // others cannot
  const session = await context.newCDPSession(page);
  await session.send("Emulation.setCPUThrottlingRate", { rate: times });
}

/** From the address of a federation to the button that starts it, with the sample. */
export async function join_(one, { invite = "", server = wanted.server, before = async () => {} } = {}) {
  const query = invite === "" ? "" : `?token=${encodeURIComponent(invite)}`;
  await one.page.goto("about:blank"); // else a view from before is there for a moment, with a button of its own
  await one.page.goto(`${server}/#/${wanted.federation}${query}`);
  await opened(one.page);
  await before(one.page);
  await one.page.check("#agree");
  await one.page.click("text=Start taking part");
  await one.page.waitForSelector("[data-state]");
}

/** Goes on from a federation's first sight to the second screen. */
export async function opened(page) {
  await page.click("#join");
  await page.waitForSelector("#agree", { state: "visible" });
}

/** Draws a stroke from top to bottom on the last pad of the page. */
export async function stroke(page) {
  const pad = page.locator(".pad").last();
  await pad.scrollIntoViewIfNeeded();
  const box = await pad.boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + box.height * 0.15);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width / 2, box.y + box.height * 0.85, { steps: 12 });
  await page.mouse.up();
}

/** Takes part with drawings: so many of the class that the page proposes each time. */
export async function drawSome(page, count) {
  await page.check("input[value=drawings]");
  for (let k = 0; k < count; k++) {
    await stroke(page);
    await page.click("text=Add this drawing");
  }
  await page.waitForSelector(".found .good");
  return (await page.textContent(".found")).trim();
}

/**
 * A network that can be cut: what goes through it ends, and nothing new gets through until it is mended; or muted: then
 * whoever calls is put through, and hears nothing.
 */
export async function cable() {
  const { hostname, port } = new URL(wanted.server);
  const open = new Set();
  let whole = true;
  let mute = false;
  const proxy = createServer((near) => {
    if (!whole) return near.destroy();
    if (mute) {
      open.add(near);
      near.on("error", () => near.destroy());
      return near.on("close", () => open.delete(near));
    }
    const far = connect(Number(port), hostname);
    for (const [one, other] of [
      [near, far],
      [far, near],
    ]) {
      open.add(one);
      one.pipe(other);
      one.on("error", () => other.destroy());
      one.on("close", () => {
        open.delete(one);
        other.destroy();
      });
    }
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  return {
    server: `http://127.0.0.1:${proxy.address().port}`,
    cut: () => {
      whole = false;
      open.forEach((one) => one.destroy());
    },
    mute: () => {
      mute = true;
      open.forEach((one) => one.destroy());
    },
    mend: () => {
      [whole, mute] = [true, false];
      open.forEach((one) => one.destroy());
    },
    close: () => {
      open.forEach((one) => one.destroy());
      proxy.close();
    },
  };
}

/** The same with the keyboard alone: the slider, the box, the button. */
export async function joinByKeyboard({ page }) {
  await page.goto(`${wanted.server}/#/${wanted.federation}`);
  await page.waitForSelector("#join");
  await page.focus("#join");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#agree", { state: "visible" });
  const shown = () => page.getAttribute(".slider-value", "data-limit");
  const told = await page.isVisible(".public-choice");
  const first = await shown();
  await page.focus("#protection");
  await page.keyboard.press("ArrowLeft");
  const stronger = await shown();
  await page.keyboard.press("ArrowRight");
  const back = await shown();
  await page.focus("#agree");
  await page.keyboard.press("Space");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.waitForSelector("[data-state]");
  return { told, first, stronger, back };
}

export const state = ({ page }) => page.evaluate(() => document.querySelector("[data-state]")?.dataset.state ?? "");

/** Waits until a page is in one of these states; one that has failed says why. */
export async function until({ page }, states, seconds = 60) {
  try {
    await page.waitForFunction(
      (all) => [...all, "failed"].includes(document.querySelector("[data-state]")?.dataset.state),
      states,
      { timeout: 1000 * seconds },
    );
  } catch (problem) {
    throw new Error(`not ${states} but "${await state({ page })}": ${await page.textContent("main")}`, { cause: problem });
  }
  if ((await state({ page })) === "failed" && !states.includes("failed"))
    throw new Error(`a page stopped: ${await page.textContent(".troubles")}`);
}

/** The page's own record as it is shown: round and chained hash of each line, the oldest first. */
export async function record({ page }) {
  return page.evaluate(() =>
    [...document.querySelectorAll(".sent tbody tr")]
      .map((row) => ({ round: Number(row.dataset.round), head: row.dataset.head }))
      .reverse(),
  );
}

export async function federation() {
  return (await fetch(`${wanted.server}/api/federations/${wanted.federation}`)).json();
}

/** Waits for a condition on what the server says of the federation. */
export async function follow(condition, seconds = 60) {
  const end = Date.now() + 1000 * seconds;
  for (;;) {
    const found = await federation();
    if (condition(found)) return found;
    if (Date.now() > end)
      throw new Error(`waited ${seconds} s for ${condition}; it is ${found.state}, round ${found.round}: ${found.why}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Violations of accessibility rules that axe-core calls serious or critical, and a page that is wider than its screen. */
export async function faults({ page }, where) {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const grave = found.violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  return [
    ...grave.map(
      ({ id, nodes }) =>
        `${where}: ${id} at ${nodes
          .map(({ target }) => target.join(" "))
          .slice(0, 3)
          .join(", ")}`,
    ),
    ...(wide > 0 ? [`${where}: ${wide} px wider than the screen`] : []),
  ];
}

export async function picture({ page }, name, options = {}) {
  if (wanted.pictures)
    await page.screenshot({
      path: join(wanted.pictures, `${name}.png`),
      ...(options.clip ? { fullPage: true } : {}),
      ...options,
    });
}
