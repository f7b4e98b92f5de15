// Five people with five browsers; one goes away in the middle of a round, another reloads. An operator watches.
import { readFileSync } from "node:fs";
import {
  drawSome,
  faults,
  federation,
  follow,
  joinByKeyboard,
  join_,
  launch,
  participant,
  picture,
  record,
  state,
  stroke,
  tell,
  throttle,
  until,
  wanted,
} from "./pages.mjs";

const browser = await launch();
try {
  const found = [];
  const operator = await participant(browser);
  await operator.page.goto(`${wanted.server}/live`);
  await operator.page.waitForSelector(".slots li");

  const looks = [{ colorScheme: "dark" }, { viewport: { width: 360, height: 740 } }, {}, {}, {}];
  const people = await Promise.all(looks.map((look) => participant(browser, look)));
  await throttle(people[1], 4); // a phone
  await throttle(people[3], 2); // an old PC
  await holdThird(people[4]);

  const [dark, phone] = people;
  await dark.page.goto(`${wanted.server}/`);
  await dark.page.waitForSelector("#join");
  await dark.page.waitForSelector(".samples canvas");
  found.push(...(await faults(dark, "first sight, dark")));
  tell({ what: "first sight", pictures: await dark.page.locator(".samples canvas").count(), dots: await dark.page.locator(".dots i").count() });
  await join_(dark, {
    before: async () => {
      found.push(...(await faults(dark, "join, dark")));
    },
  });
  await phone.page.goto(`${wanted.server}/`);
  await phone.page.waitForSelector(".samples canvas");
  found.push(...(await faults(phone, "first sight, phone, light")));
  await picture(phone, "join");
  await join_(phone, {
    before: async () => {
      found.push(...(await faults(phone, "join, phone, light")));
      const start = await phone.page.locator("form .start").boundingBox();
      tell({ what: "phone", start: start.y + start.height });
      await picture(phone, "consent", { fullPage: true });
    },
  });
  await until(phone, ["waiting"]);
  found.push(...(await faults(phone, "waiting, phone, light")));
  await picture(phone, "lobby");
  await join_(people[2]);
  tell({ what: "keyboard", ...(await joinByKeyboard(people[3])) });
  await join_(people[4], {
    before: async (page) => tell({ what: "drawn", text: await drawSome(page, 3) }),
  });

  await people[4].page.waitForFunction(() => window.held, null, { timeout: 90_000 });
  const { round } = await federation(); // the one after it is open, and stays so until the page that it waits for is closed
  const before = await record(people[2]);
  const heads = before.map(({ head }) => head);
  await people[2].page.reload();
  await people[2].page.waitForSelector(`.sent tbody tr[data-round="${round + 1}"]`, { timeout: 60_000 });
  await until(people[2], ["waiting"]);
  const after = await record(people[2]);
  tell({
    what: "reloaded",
    intact: heads.every((head, k) => after[k]?.head === head),
    before: before.length,
    after: after.length,
  });
  await people[4].context.close();
  tell({ what: "closed", round: round + 1 });

  await dark.page.click("text=My record");
  await dark.page.waitForSelector(".record tbody tr");
  found.push(...(await faults(dark, "record, dark")));
  await dark.page.focus(".skip");
  await dark.page.keyboard.press("Enter");
  tell({ what: "skipped", to: await dark.page.evaluate(() => document.activeElement.id), at: new URL(dark.page.url()).hash });
  await dark.page.goBack();
  await dark.page.waitForSelector("[data-state]"); // it has gone on meanwhile

  await follow(({ round }) => round >= 6);
  await picture(phone, "training");
  if (wanted.pictures) await phone.page.locator(".noise").screenshot({ path: `${wanted.pictures}/noise.png` });
  await picture(operator, "live", { clip: await upTo(operator.page, "#rounds") });
  found.push(
    ...(await faults(dark, "training, dark")),
    ...(await faults(phone, "training, phone, light")),
    ...(await faults(people[3], "training, light")),
  );
  found.push(...(await faults(operator, "live, light")));
  await operator.page.emulateMedia({ colorScheme: "dark" });
  found.push(...(await faults(operator, "live, dark")));
  await operator.page.emulateMedia({ colorScheme: "light" });

  const end = await follow(({ state }) => state === "finished", 90);
  for (const one of people.slice(0, 4)) await until(one, ["ended", "declined"], 20);
  tell({ what: "tried", ...(await tryModel(people[3])) });
  await picture(people[3], "tried");
  tell({
    what: "end",
    round: end.round,
    accuracy: end.accuracy,
    reported: end.history.map(({ reported }) => reported),
    seconds: end.history.map(({ seconds }) => seconds),
  });
  const rounds = await Promise.all(people.slice(0, 4).map(async (one) => (await record(one)).map(({ round }) => round)));
  const states = await Promise.all(people.slice(0, 4).map(state));
  await phone.page.goto(`${wanted.server}/#/record`);
  await phone.page.reload();
  await phone.page.waitForSelector(".record tbody tr");
  found.push(...(await faults(phone, "record, phone, light")));
  await picture(phone, "record");
  tell({ what: "record", rows: await ownRecord(phone), saved: await saved(phone) });
  const late = await participant(browser, looks[1]);
  await late.page.goto(`${wanted.server}/`);
  await late.page.waitForSelector(".late .pad");
  tell({ what: "late", ...(await tryModel(late)), downloads: await late.page.locator(".late a[download]").count() });
  found.push(...(await faults(late, "late, phone, light")));
  await picture(late, "late");
  tell({ what: "faults", found });
  tell({
    what: "ledgers",
    rounds,
  });
  tell({ what: "problems", found: people.flatMap(({ problems }) => problems) });
  tell({
    what: "sent",
    frames: people.map(({ sent, received }) => ({ sent, received })),
    requests: people.flatMap(({ requests }) => requests),
  });
  tell({
    what: "state",
    states,
    federation: (await federation()).task.federation,
  });
} finally {
  await browser.close();
}

/** Lets two reports of a page through and holds the third back, so that the server waits in the middle of a round. */
async function holdThird({ page }) {
  await page.addInitScript(() => {
    const send = WebSocket.prototype.send;
    let reports = 0;
    WebSocket.prototype.send = function (data) {
      if (typeof data === "string" || ++reports <= 2) return send.call(this, data);
      window.held = true;
    };
  });
}

/** The rounds in the record that a browser shows of itself. */
async function ownRecord({ page }) {
  return page.evaluate(() => [...document.querySelectorAll(".record tbody tr")].map(({ dataset }) => Number(dataset.round)).reverse());
}

/** The record as a file. */
async function saved({ page }) {
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#save-record")]);
  const { head, sound, lines } = JSON.parse(readFileSync(await download.path(), "utf8"));
  return { head, sound, last: lines.at(-1).head, lines: lines.length };
}

/** Draws a vertical stroke. Whatever the model makes of it, it answers. */
async function tryModel({ page }) {
  await stroke(page);
  await page.waitForSelector(".answers li");
  return { verdict: await page.textContent(".verdict"), answers: await page.locator(".answers li").count() };
}

/** From the top of the page to where a part begins. */
async function upTo(page, selector) {
  return page.evaluate((where) => {
    const box = document.querySelector(where).closest(".card").getBoundingClientRect();
    return { x: 0, y: 0, width: window.innerWidth, height: Math.round(box.top + window.scrollY - 8) };
  }, selector);
}
