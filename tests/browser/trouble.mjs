// People for whom something goes wrong: a forged invitation, a spent budget, a report with extra bits, a second tab, no network,
// a sample that does not come, a server that never answers.
import {
  cable,
  drawSome,
  federation,
  follow,
  join_,
  launch,
  opened,
  participant,
  picture,
  record,
  state,
  tell,
  until,
  wanted,
} from "./pages.mjs";

const [mine, hers, spent, theirs, last] = wanted.tokens;
const browser = await launch();
try {
  const clumsy = await participant(browser);
  await clumsy.page.goto(`${wanted.server}/#/${wanted.federation}`);
  await opened(clumsy.page);
  await clumsy.page.check("input[value=csv]");
  tell({ what: "unsaid", ...(await chosen(clumsy, "#table-file", wanted.tables.good)) });
  await clumsy.page.selectOption("#table-first", "names");
  for (const [name, path] of Object.entries(wanted.tables))
    tell({ what: name, ...(await chosen(clumsy, "#table-file", path)) });
  await picture(clumsy, "no header");
  await clumsy.page.selectOption("#table-first", ",");
  await clumsy.page.waitForSelector(".found .note.good");
  tell({ what: "said", text: await clumsy.page.textContent(".found"), label: await clumsy.page.inputValue("#table-label") });
  await picture(clumsy, "no header, said");
  await clumsy.page.check("input[value=images]");
  for (const [name, path] of Object.entries(wanted.images))
    tell({ what: name, ...(await chosen(clumsy, "#picture-files", path)) });
  tell({ what: "nothing left", sent: clumsy.sent.length });
  await clumsy.context.close();

  const faraway = await participant(browser);
  await faraway.page.goto(`http://elsewhere.test:${new URL(wanted.server).port}/#/${wanted.federation}`);
  await faraway.page.waitForSelector("#able");
  await opened(faraway.page);
  await faraway.page.check("#agree");
  await faraway.page.press("form button.main", "Enter"); // a click would wait for the button to be allowed
  tell({
    what: "without https",
    text: await faraway.page.textContent("#able"),
    why: await faraway.page.textContent("#why-not"),
    sent: faraway.sent.length,
  });
  await faraway.context.close();

  const stranger = await participant(browser);
  await join_(stranger, { invite: "forged" });
  await until(stranger, ["failed"], 20);
  tell({
    what: "forged",
    text: await stranger.page.textContent(".troubles"),
    records: (await record(stranger)).length,
  });

  const liar = await participant(browser);
  await liar.page.addInitScript(() => {
    const send = WebSocket.prototype.send;
    WebSocket.prototype.send = function (data) {
      if (typeof data === "string") return send.call(this, data);
      const bytes = new Uint8Array(data.buffer ?? data, data.byteOffset ?? 0, data.byteLength);
      return send.call(this, new Uint8Array([...bytes, 1, 2, 3, 4]));
    };
  });
  await join_(liar, { invite: hers });

  const poor = await participant(browser);
  await poor.page.addInitScript(() => {
    window.kept = 0; // how often the screen is kept on
    const request = async () => {
      window.kept += 1;
      return { release: async () => void (window.kept -= 1) };
    };
    Object.defineProperty(navigator, "wakeLock", { value: { request } });
  });
  await poor.page.goto(`${wanted.server}/build.json`); // not the page itself: it would begin while the next is opened
  await poor.page.evaluate(
    ([name, terms, token]) => {
      const budget = { limit: 0.5, delta: 1e-5, basis: "proven", adjacency: "record-add-remove" };
      sessionStorage.setItem(
        "sordino:taking-part",
        JSON.stringify({ federation: name, terms, data: "sample", choice: { budget }, token }),
      );
    },
    [wanted.federation, (await federation()).task.terms, spent],
  );
  await poor.page.goto(`${wanted.server}/#/${wanted.federation}`);

  const honest = await participant(browser);
  const network = await cable();
  await join_(honest, { invite: mine, server: network.server });
  await follow(({ round }) => round >= 1);
  const second = { ...(await participant(browser)), page: await honest.context.newPage() };
  await join_(second, { invite: theirs, server: network.server });
  await second.page.waitForSelector(".troubles p, [data-state=failed]", { timeout: 20_000 });
  tell({
    what: "second tab",
    text: await second.page.textContent(".troubles"),
    state: await state(second),
    first: await state(honest),
  });
  await second.page.close();

  network.cut();
  await until(honest, ["offline"], 30);
  const away = await honest.page.textContent(".now-more");
  await new Promise((resolve) => setTimeout(resolve, 1500));
  const before = (await record(honest)).length;
  network.mend();
  await until(honest, ["waiting", "training", "randomising", "sending"], 40);
  await honest.page.waitForFunction((count) => document.querySelectorAll(".sent tbody tr").length > count, before, {
    timeout: 30_000,
  });
  tell({ what: "network", away, rounds: (await record(honest)).map(({ round }) => round) });

  await honest.page.click("text=Pause");
  await until(honest, ["paused"]);
  const paused = await honest.page.textContent(".now-more");
  await honest.page.click("text=Continue");
  await until(honest, ["waiting", "training", "randomising", "sending"]);
  await honest.page.focus("text=Leave…");
  for (const key of ["Enter", "Enter"]) await honest.page.keyboard.press(key); // the second by mistake
  const stayed = await state(honest);
  await honest.page.click("text=Leave…");
  await honest.page.click("dialog button.main");
  await opened(honest.page);
  tell({ what: "left", paused, stayed, budget: await remaining(honest) });
  network.close();
  await until(poor, ["declined"], 90);
  tell({
    what: "spent",
    text: await poor.page.textContent(".now"),
    records: (await record(poor)).length,
  });
  tell({ what: "elsewhere", before: await held(poor), ...(await wentElsewhere(poor)) });

  tell({ what: "left offline", ...(await leftOffline()) });

  tell({ what: "mute", ...(await muted()) });

  const operator = await participant(browser);
  await operator.page.addInitScript(() => {
    window.streams = [];
    const { EventSource } = window;
    window.EventSource = class extends EventSource {
      constructor(...given) {
        super(...given);
        window.streams.push(this);
      }
    };
  });
  await operator.page.goto(`${wanted.server}/live`);
  await operator.page.waitForSelector("#refused ~ .stack .note.bad");
  tell({ what: "chosen twice", ...(await choseTwice(operator)) });
  await picture(operator, "live-refused", { fullPage: true });
  tell({
    what: "refused",
    text: await operator.page.textContent("#refused ~ .stack"),
    slots: await operator.page.locator(".slots .wrong").count(),
  });
  const now = await federation();
  tell({ what: "end", refused: now.live.refused, participants: now.live.participants, history: now.history });
  tell({ what: "freed", before: now.free, ...(await freed(operator, 1)) });
} finally {
  await browser.close();
}

/** The operator frees a place; what the list says then, and how many places are free. */
async function freed({ page }, client) {
  const place = page.locator(`.slots [data-client="${client}"]`);
  await place.locator("button").click();
  await page.click("dialog button.main");
  await place.getByText("the place is free").waitFor();
  return { after: (await federation()).free };
}

/** Somebody whose sample does not come at first, and who leaves without a network; then another with the same invitation. */
async function leftOffline() {
  const one = await participant(browser);
  const network = await cable();
  await one.context.route("**/sample?*", (route) => route.abort());
  await join_(one, { invite: last, server: network.server });
  await until(one, ["failed"], 20);
  const trouble = await one.page.textContent(".troubles");
  await one.context.unroute("**/sample?*");
  await triesAgain(one);
  await until(one, ["waiting", "training", "randomising", "sending"], 20);
  network.cut();
  await until(one, ["offline"], 30);
  await one.page.click("text=Leave…");
  await one.page.click("dialog button.main");
  await one.page.waitForSelector("[role=alert] .note");
  const told = await one.page.textContent("[role=alert] .note");
  await one.page.click("text=My record");
  const read = await one.page.waitForSelector(".record").then(() => true);
  await one.page.goBack();
  await one.page.waitForSelector("[role=alert] .note");
  const early = await participant(browser);
  await join_(early, { invite: last });
  await until(early, ["failed"], 20);
  const taken = await early.page.textContent(".troubles");
  network.mend();
  await one.page.reload(); // the page is opened again
  await one.page.waitForFunction(() => JSON.parse(localStorage.getItem("sordino:leaving")).length === 0, null, { timeout: 60_000 });
  await triesAgain(early);
  await until(early, ["waiting", "training", "randomising", "sending", "declined"], 20);
  await early.context.close();
  await one.context.close();
  network.close();
  return { trouble, told, taken, read };
}

/** Somebody whose server is put through and never answers: before joining, when joining, and at the operator's view. */
async function muted() {
  const one = await participant(browser);
  const { page } = one;
  const network = await cable();
  await page.clock.install();
  await page.goto(`${network.server}/#/`);
  await page.waitForSelector("#join");
  const failed = async (what) => {
    network.mute();
    const asked = page.waitForRequest(/\/api\/federations/);
    await what();
    await asked;
    await page.clock.fastForward(2_000);
    const meanwhile = await page.textContent("#view");
    await page.clock.fastForward(20_000);
    await page.waitForSelector("[role=alert] button.main");
    const text = await page.textContent("[role=alert]");
    network.mend();
    await page.click("[role=alert] button.main");
    return { meanwhile, text };
  };
  const shown = await failed(() => page.evaluate((name) => void (location.hash = `#/${name}`), wanted.federation));
  await opened(page);
  const counted = await drawSome(page, 3);
  await page.fill("#token", "forged");
  await page.check("#agree");
  const begun = await failed(() => page.click("text=Start taking part"));
  await until(one, ["failed"], 20); // it has begun with the same examples, as far as the invitation carries it
  const reached = await page.textContent(".troubles");
  await page.goto(`${network.server}/live`);
  await page.waitForSelector(".slots");
  const live = await failed(() => page.evaluate(() => void (location.hash = "#/another")));
  await page.waitForSelector(".slots");
  await one.context.close();
  network.close();
  return { shown, begun, counted, reached, live };
}

/** Chooses two federations one right after the other: how many streams are open in the end. */
async function choseTwice({ page }) {
  const before = await page.evaluate(() => window.streams.length);
  await page.evaluate(() => {
    location.hash = "#/one";
    setTimeout(() => (location.hash = "#/other"), 0);
  });
  await page.waitForFunction((count) => window.streams.length > count, before);
  await page.waitForFunction(() => document.querySelector(".connection.live"));
  await new Promise((resolve) => setTimeout(resolve, 300));
  return { open: await page.evaluate(() => window.streams.filter(({ readyState }) => readyState !== 2).length) };
}

async function triesAgain({ page }) {
  await page.click(".troubles button.main");
  await page.waitForSelector("[data-state]:not([data-state=failed])");
}

/** What the page says about the budget of somebody who was here before. */
async function remaining({ page }) {
  await page.waitForFunction(() => document.querySelector(".reach")?.dataset.before);
  await page.check("#agree");
  const found = [];
  for (const key of ["Home", "End"]) {
    await page.evaluate(() => (document.querySelector(".reach").dataset.before = ""));
    await page.press("#protection", key);
    await page.waitForFunction(() => document.querySelector(".reach").dataset.before);
    const { before, rounds } = await page.evaluate(() => ({ ...document.querySelector(".reach").dataset }));
    const starts = (await page.getAttribute("form button.main[type=submit]", "aria-disabled")) === "false";
    found.push({ before: Number(before), rounds: Number(rounds), starts });
  }
  return found;
}

/** Workers of a page, and how often it keeps the screen on. */
async function held({ page }) {
  return { workers: page.workers().length, screen: await page.evaluate(() => window.kept) };
}

/** Goes to the list of federations within the page, as its own link does. */
async function wentElsewhere(one) {
  await one.page.evaluate(() => void (location.hash = "#/"));
  await one.page.waitForSelector("#join");
  for (let k = 0; k < 50 && one.page.workers().length > 0; k++) await new Promise((resolve) => setTimeout(resolve, 100));
  return { after: await held(one) };
}

/** What the page says about a file, and how long it took. */
async function chosen({ page }, field, path) {
  const began = Date.now();
  await page.evaluate(() => document.querySelector(".found").replaceChildren());
  await page.setInputFiles(field, path);
  await page.waitForSelector(".found .note", { timeout: 30_000 });
  const kind = await page.getAttribute(".found .note", "class");
  const why = await page.textContent("#why-not");
  return { text: (await page.textContent(".found")).trim(), kind, why, seconds: (Date.now() - began) / 1000 };
}
