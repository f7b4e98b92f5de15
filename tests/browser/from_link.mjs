// A visitor with a phone follows a link, joins, waits in the lobby, draws while it trains, and keeps a model that reads drawings.
import { faults, follow, launch, participant, picture, stroke, tell, wanted } from "./pages.mjs";

const PHONE = { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, deviceScaleFactor: 1.5 };
const browser = await launch();
const found = [];

async function look(one, name, options = {}) {
  found.push(...(await faults(one, name)));
  await picture(one, name, options);
}

/** Follows the link and takes part with the public examples, as somebody does who only wants to see it. */
async function join(one, seen = async () => {}) {
  await one.page.goto(wanted.link);
  await one.page.waitForSelector("#join");
  await seen("first-sight");
  await one.page.click("#join");
  await one.page.waitForSelector("#agree", { state: "visible" });
  const consent = await one.page.evaluate(() => document.querySelector("#agree").getBoundingClientRect().top + scrollY);
  await seen("consent");
  await one.page.click("text=Start taking part", { force: true }); // nothing was agreed to yet
  const refused = await one.page.evaluate(() => document.activeElement.id);
  await one.page.check("#agree");
  await one.page.click("text=Start taking part");
  await one.page.waitForSelector("[data-state]");
  return { consent, refused };
}

/** Opens the fold that shows what the server could see, draws, and moves the slider to the strongest protection and back. */
async function lookAtLeak(one) {
  const { page, requests } = one;
  // a stroke may be attacked in parts: what the slider changes are the gradients, not the turn alone
  const leak = async (was = {}, key = "turn") => {
    await page.waitForFunction(([key, before]) => ![undefined, before].includes(document.querySelector(".leak").dataset[key]), [key, was[key]]);
    return page.evaluate(() => ({ ...document.querySelector(".leak").dataset, pictures: document.querySelectorAll(".leak-pictures canvas").length }));
  };
  await page.focus(".leak summary");
  await page.keyboard.press("Enter");
  const shown = await leak();
  await look(one, "leak-public");
  const before = requests.length;
  await stroke(page);
  const drawn = await leak(shown);
  await page.locator(".leak").scrollIntoViewIfNeeded();
  await look(one, "leak");
  await page.focus("#protection");
  await page.keyboard.press("Home");
  const least = await leak(drawn, "gradients");
  await page.keyboard.press("End");
  const back = await leak(least, "gradients");
  const isNews = ({ method, url, body }) => method === "GET" && body === null && url.endsWith("/api/federations"); // who is here by now
  tell({ what: "leak", shown, drawn, least, back, requests: requests.slice(before).filter((one) => !isNews(one)), frames: one.sent.length });
}

const verdict = (page) => page.textContent(".verdict");

const visitor = await participant(browser, PHONE);
const { consent, refused } = await join(visitor, async (name) => {
  await look(visitor, name);
  if (name === "consent") await lookAtLeak(visitor);
});
await visitor.page.waitForSelector("[data-state=waiting]");
await visitor.page.waitForSelector(".invite svg");
await look(visitor, "lobby");
const alone = await follow(() => true);
tell({ what: "lobby", consent, refused, state: alone.state, round: alone.round, qr: await visitor.page.locator(".invite svg").count() });

const other = await participant(browser);
await join(other, (name) => (name === "consent" ? Promise.resolve() : look(other, "first-sight-wide")));
await follow(({ starts_in }) => typeof starts_in === "number");
await visitor.page.waitForTimeout(1200); // it is told once a second
await visitor.page.locator(".invite .qr").scrollIntoViewIfNeeded();
await look(visitor, "countdown");
await follow(({ round }) => round >= 3, 120);
await stroke(visitor.page);
await visitor.page.waitForFunction(() => document.querySelector(".answers li") !== null);
tell({ what: "early", verdict: await verdict(visitor.page), state: (await follow(() => true)).state });
await visitor.page.evaluate(() => scrollTo(0, 0));
await look(visitor, "training");
await picture(other, "training-wide");
await visitor.page.locator(".noise").first().scrollIntoViewIfNeeded();
await picture(visitor, "noise");

const end = await follow(({ state }) => state === "finished", 200);
await visitor.page.waitForSelector("[data-state=ended]");
await visitor.page.click("text=Clear");
await stroke(visitor.page);
await visitor.page.waitForFunction(() => document.querySelector(".answers li") !== null);
await visitor.page.waitForTimeout(500);
await look(visitor, "end");
await visitor.page.evaluate(() => scrollTo(0, 0));
await picture(visitor, "front");
tell({ what: "end", files: await visitor.page.locator("[aria-labelledby=files] a").count(), verdict: await verdict(visitor.page), accuracy: end.accuracy, rounds: end.round });

await visitor.page.goto(`${wanted.server}/#/record`);
await visitor.page.reload();
await visitor.page.waitForSelector(".record");
await look(visitor, "record");
tell({ what: "record", rows: await visitor.page.locator(".record tbody tr").count() });

const late = await participant(browser, PHONE);
await late.page.goto(wanted.link);
await late.page.waitForSelector(".late .pad");
await stroke(late.page);
await late.page.waitForFunction(() => document.querySelector(".answers li") !== null);
await look(late, "latecomer");
tell({ what: "late", verdict: await verdict(late.page) });

const operator = await participant(browser);
await operator.page.goto(`${wanted.server}/live`);
await operator.page.waitForSelector("h1");
await operator.page.waitForTimeout(1000);
await look(operator, "live");
tell({ what: "faults", found, problems: [visitor, other, late, operator].flatMap(({ problems }) => problems) });
await browser.close();
