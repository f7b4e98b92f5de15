// One journey through the page, in any browser that speaks WebDriver BiDi: join, wait in the lobby, train, draw, reload, leave.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const require = createRequire(join(dirname(fileURLToPath(import.meta.url)), "../../web/package.json"));
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const wanted = JSON.parse(process.argv[2]);
const tell = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);
const PATIENCE = { timeout: 90_000, polling: 200 }; // by the clock: a tab in the background draws no frames

const browser = await puppeteer.launch({
  browser: wanted.browser === "firefox" ? "firefox" : "chrome",
  executablePath: wanted.executable,
  protocol: "webDriverBiDi",
  args: wanted.browser === "firefox" ? [] : ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
});
try {
  const phone = await person({ width: 390, height: 844 });
  await joined(phone);
  await phone.page.waitForSelector("[data-state=waiting] .places:not([hidden])", PATIENCE);
  await stroke(phone.page);
  await phone.page.waitForSelector(".answers li", PATIENCE);
  tell({ what: "lobby", ...(await phone.page.evaluate(lobby)), faults: await faults(phone.page) });

  const [desk, small] = [{ width: 1280, height: 800 }, { width: 390, height: 844 }];
  const others = [];
  for (const size of [desk, desk, small]) others.push(await person(size));
  const [second, third, slow] = others;
  await holdThird(slow.page);
  for (const one of others) await joined(one);
  await slow.page.waitForFunction(() => window.held, PATIENCE);
  await phone.page.waitForSelector('.sent tbody tr[data-round="3"]', PATIENCE);
  await phone.page.waitForFunction(() => document.querySelectorAll(".noise figure:not([hidden])").length === 3, PATIENCE);
  await phone.page.waitForFunction(() => /round [12]/.test(document.querySelector(".heard")?.textContent), PATIENCE);
  tell({ what: "training", ...(await phone.page.evaluate(training)), faults: await faults(phone.page) });

  const before = await record(phone.page);
  await phone.page.reload();
  await phone.page.waitForSelector(`.sent tbody tr[data-round="${before.at(-1).round}"]`, PATIENCE);
  const after = await record(phone.page);
  tell({ what: "reloaded", intact: before.every(({ head }, k) => after[k]?.head === head), rounds: after.length });

  await press(slow.page, ".actions button:last-child");
  await slow.page.waitForSelector("dialog[open]", PATIENCE);
  const dialog = await slow.page.evaluate(() => document.querySelector("dialog").getBoundingClientRect().bottom - innerHeight);
  await press(slow.page, "dialog button.main");
  await slow.page.waitForSelector("#join", PATIENCE);
  tell({ what: "left", dialog });

  const rest = [phone, second, third];
  for (const { page } of rest) await page.waitForSelector("[data-state=ended]", PATIENCE);
  await stroke(phone.page);
  await phone.page.waitForFunction((last) => document.querySelector(".heard")?.textContent.includes(`round ${last}`), PATIENCE, wanted.rounds);
  tell({
    what: "end",
    ...(await phone.page.evaluate(training)),
    rounds: (await Promise.all(rest.map(({ page }) => record(page)))).map((lines) => lines.map(({ round }) => round)),
    faults: await faults(phone.page),
  });
  tell({ what: "problems", found: [phone, ...others].flatMap(({ problems }) => problems) });
  tell({ what: "browser", version: await browser.version() });
} finally {
  await browser.close();
}

/** Somebody with a browser of their own. */
async function person(viewport) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  await page.setViewport(viewport);
  const problems = [];
  page.on("pageerror", ({ message }) => problems.push(message));
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  return { page, problems };
}

async function joined({ page }) {
  await page.goto(`${wanted.server}/#/${wanted.federation}`);
  await press(page, "#join");
  await page.waitForSelector("#agree", { ...PATIENCE, visible: true });
  await press(page, "#agree");
  await page.waitForSelector("form button.main:not([aria-disabled=true])", PATIENCE);
  await press(page, "form button.main");
  await page.waitForSelector("[data-state]", PATIENCE);
}

/** By the keyboard: what is out of sight is pressed all the same. */
async function press(page, selector) {
  await page.bringToFront(); // keys go nowhere else
  await page.waitForSelector(selector, PATIENCE);
  await page.focus(selector);
  await page.keyboard.press(" ");
}

async function stroke(page) {
  await page.bringToFront();
  const pad = await page.waitForSelector(".pad", PATIENCE);
  await pad.scrollIntoView();
  const { x, y, width, height } = await pad.boundingBox();
  await page.mouse.move(x + width / 2, y + height * 0.15);
  await page.mouse.down();
  await page.mouse.move(x + width / 2, y + height * 0.85, { steps: 8 });
  await page.mouse.up();
}

/** Lets two reports of a page through and holds the third back, so that the server waits in the middle of a round. */
async function holdThird(page) {
  await page.evaluateOnNewDocument(() => {
    const send = WebSocket.prototype.send;
    let reports = 0;
    WebSocket.prototype.send = function (data) {
      if (typeof data === "string" || ++reports <= 2) return send.call(this, data);
      window.held = true;
    };
  });
}

function record(page) {
  return page.evaluate(() =>
    [...document.querySelectorAll(".sent tbody tr")]
      .map((row) => ({ round: Number(row.dataset.round), head: row.dataset.head }))
      .reverse(),
  );
}

/** What the lobby shows. */
function lobby() {
  const count = (selector) => document.querySelectorAll(selector).length;
  return {
    places: count(".place"),
    mine: count(".place.you"),
    free: count(".place.free"),
    link: document.querySelector(".invite code").textContent,
    code: document.querySelector(".invite .qr path").getAttribute("d").length,
    answers: count(".answers li"),
    best: count(".answers .best"),
    charts: [...document.querySelectorAll(".chart")].filter(({ offsetParent }) => offsetParent !== null).length,
  };
}

/** What is shown while it trains: the answer, and how many colours the pictures of the noise have. */
function training() {
  const colours = (canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(Array.from({ length: data.length / 4 }, (_, k) => data.slice(4 * k, 4 * k + 3).join())).size;
  };
  const pictures = [...document.querySelectorAll(".noise figure:not([hidden])")];
  return {
    answer: document.querySelector(".answer").textContent,
    best: document.querySelectorAll(".answers .best").length,
    invited: document.querySelector(".invite")?.offsetParent != null,
    pictures: pictures.map((picture) => [...picture.querySelectorAll("canvas")].map(colours)),
  };
}

/** Serious violations of accessibility rules, and a page that is wider than its screen. */
async function faults(page) {
  await page.evaluate(axe);
  return page.evaluate(async () => {
    const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
    const grave = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
    const wide = document.documentElement.scrollWidth - window.innerWidth;
    return [...grave.map(({ id, nodes }) => `${id} at ${nodes[0].target.join(" ")}`), ...(wide > 0 ? [`${wide} px too wide`] : [])];
  });
}
