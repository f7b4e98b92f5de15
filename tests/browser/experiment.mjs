// Pages that take part from the first round to the last; what the server measured is told at the end.
import { follow, join_, launch, participant, tell, until, wanted } from "./pages.mjs";

const browser = await launch();
try {
  const people = [];
  const opened = Date.now();
  for (let k = 0; k < wanted.pages; k++) {
    const one = await participant(browser);
    const began = Date.now();
    await join_(one, { before: consent });
    await until(one, ["waiting", "training", "randomising", "sending"], 120);
    people.push({ ...one, joined: (Date.now() - began) / 1000 });
  }
  await people[0].page.waitForSelector(".sent tbody tr", { timeout: 600_000 });
  const first = (Date.now() - opened) / 1000;
  const end = await follow(({ state }) => state === "finished" || state === "failed", wanted.patience);
  tell({ what: "end", state: end.state, why: end.why, history: end.history, statement: end.statement.rows });
  tell({
    what: "pages",
    joined: people.map(({ joined }) => joined),
    first,
    device: await people[0].page.textContent(".actions + p"),
    browser: browser.version(),
    problems: people.flatMap(({ problems }) => problems),
  });
} finally {
  await browser.close();
}

/** Ticks what a federation without a proof asks for. */
async function consent(page) {
  for (const box of ["#accept-claimed", "#accept-unbounded"])
    if (await page.locator(box).count()) await page.check(box);
}
