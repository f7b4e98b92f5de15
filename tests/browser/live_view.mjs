// An operator, a member and a reader open the live view of a run by their links; a stranger is asked for a token.
import { writeFileSync } from "node:fs";
import { faults, launch, participant, picture, tell, wanted } from "./pages.mjs";

const WIDE = { viewport: { width: 1280, height: 900 } };
const PHONE = { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, deviceScaleFactor: 1.5 };
const browser = await launch();
const found = [];
const everybody = [];

async function visitor(options) {
  const one = await participant(browser, options);
  everybody.push(one);
  return one;
}

const link = (token) => `${wanted.server}/live#token=${token}`;
const rounds = ({ page }) => page.locator("[aria-labelledby=rounds] tbody tr").count();

/** Opens the view with a token, and waits until it is told what happens. */
async function watch(name, token, options) {
  const one = await visitor(options);
  await one.page.goto(link(token));
  await one.page.waitForSelector(".connection.live");
  await one.page.waitForSelector(".statement .onlooker");
  found.push(...(await faults(one, name)));
  await picture(one, name, { fullPage: true });
  return one;
}

/** What somebody sees, and what there is to press. */
async function view(one) {
  const { page } = one;
  return {
    members: await page.locator(".members b").allTextContents(),
    text: await page.evaluate(() => document.body.innerText),
    rounds: await rounds(one),
    offers: await page.locator("button:visible").filter({ hasNotText: "Privacy statement" }).count() + (await page.locator(".qr, a[href='/']").count()),
  };
}

const operator = await watch("live-operator", wanted.tokens.operator, WIDE);
tell({ what: "operator", ...(await view(operator)) });
await watch("live-operator-phone", wanted.tokens.operator, PHONE);
tell({ what: "member", ...(await view(await watch("live-member", wanted.tokens["clinic-a"], WIDE))) });
tell({ what: "reader", ...(await view(await watch("live-reader", wanted.tokens.reader, WIDE))) });
await watch("live-reader-phone", wanted.tokens.reader, PHONE);

const stranger = await visitor(PHONE);
await stranger.page.goto(`${wanted.server}/live`);
await stranger.page.waitForSelector("#token");
const asked = await stranger.page.isVisible("#token");
found.push(...(await faults(stranger, "live-token")));
await picture(stranger, "live-token");
await stranger.page.fill("#token", "x".repeat(32));
await stranger.page.click("text=Watch");
await stranger.page.waitForFunction(() => document.querySelector("#token")?.value === "");
const wrong = await stranger.page.isVisible("#token");
await stranger.page.fill("#token", wanted.tokens.reader);
await stranger.page.click("text=Watch");
await stranger.page.waitForSelector(".connection.live");
tell({ what: "stranger", asked, wrong, rounds: await rounds(stranger) });

writeFileSync(wanted.seen, "");
await operator.page.waitForSelector(".headline .badge.good", { timeout: 60_000 });
await operator.page.waitForFunction(() => document.querySelectorAll("[aria-labelledby=rounds] tbody tr").length === 8);
tell({ what: "end", state: await operator.page.textContent(".headline .badge.good"), rounds: await rounds(operator) });

const secrets = Object.values(wanted.tokens);
const addresses = everybody.flatMap(({ page, requests }) => [page.url(), ...requests.map(({ url }) => url)]);
// the first address is the link itself, which a browser keeps to itself behind the #
const leaked = addresses.filter((address) => secrets.some((one) => address.replace(/#.*/, "").includes(one)));
tell({ what: "addresses", leaked: [...leaked, ...everybody.map(({ page }) => page.url()).filter((url) => secrets.some((one) => url.includes(one)))] });
const expected = /401|Failed to load resource|ERR_/; // the stranger's own, and the server's end
tell({ what: "faults", found, problems: everybody.flatMap(({ problems }) => problems).filter((text) => !expected.test(text)) });
await browser.close();
