// Pages that take part from the first round to the last; what the server measured is told at the end.
import { federation, join_, launch, participant, tell, until, wanted } from "./pages.mjs";

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
  const end = await watched();
  tell({ what: "end", state: end.state, why: end.why, history: end.history, statement: end.statement.rows });
  tell({
    what: "pages",
    joined: people.map(({ joined }) => joined),
    first,
    device: await people[0].page.textContent(".device"),
    browser: browser.version(),
    problems: people.flatMap(({ problems }) => problems),
  });
} finally {
  await browser.close();
}

/** The federation when it is over, or when the time that was given is. */
async function watched() {
  const last = Date.now() + 1000 * wanted.patience;
  for (;;) {
    const found = await federation();
    if (found.state === "finished" || found.state === "failed" || Date.now() > last) return found;
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

/** Ticks what a federation without a proof asks for. */
async function consent(page) {
  for (const box of ["#accept-claimed", "#accept-unbounded"])
    if (await page.locator(box).count()) await page.check(box);
}
