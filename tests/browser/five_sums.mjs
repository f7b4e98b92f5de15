// Five people with five browsers sum up over public features: second moments, then gradients. One reloads in between.
import { drawSome, federation, follow, join_, launch, participant, record, state, stroke, tell, until, wanted } from "./pages.mjs";

const seconds = wanted.patience ?? 90;
const timeout = 1000 * seconds;
const browser = await launch();
try {
  const people = await Promise.all(wanted.tokens.map(() => participant(browser)));
  for (const one of people) await one.page.addInitScript(listen);
  const [first, second, ...others] = people;
  await join_(first, {
    invite: wanted.tokens[0],
    before: async (page) => tell({ what: "leaves", text: await page.textContent(".leaves") }),
  });
  await join_(second, { invite: wanted.tokens[1], before: (page) => (wanted.drawn ? drawSome(page, 3) : null) });
  for (const [k, one] of others.entries()) await join_(one, { invite: wanted.tokens[k + 2] });

  await first.page.waitForSelector('.sent tbody tr[data-round="1"]', { timeout });
  const before = await record(first);
  await first.page.reload();
  await first.page.waitForSelector(`.sent tbody tr[data-round="${before.at(-1).round + 1}"]`, { timeout });
  const after = await record(first);
  tell({ what: "reloaded", intact: before.every(({ head }, k) => after[k]?.head === head) });

  const end = await follow(({ state }) => state === "finished", seconds);
  for (const one of people) await until(one, ["ended"], 20);
  await stroke(people[2].page);
  await people[2].page.waitForSelector(".answers li");
  tell({ what: "tried", verdict: await people[2].page.textContent(".verdict") });
  tell({ what: "end", round: end.round, accuracy: end.accuracy, seconds: end.history.map(({ seconds }) => seconds), reported: end.history.map(({ reported }) => reported) });
  tell({ what: "ledgers", rounds: await Promise.all(people.map(async (one) => (await record(one)).map(({ round }) => round))) });
  tell({ what: "said", lines: await people[2].page.evaluate(() => window.said) });
  tell({ what: "problems", found: people.flatMap(({ problems }) => problems) });
  tell({ what: "states", found: await Promise.all(people.map(state)), federation: (await federation()).federation });
  tell({
    what: "sent",
    frames: people.map(({ sent, received }) => ({ sent, received })),
    requests: people.flatMap(({ requests }) => requests),
  });
} finally {
  await browser.close();
}

/** Keeps what the page says of its work, each kind of line once. */
function listen() {
  window.said = [];
  const note = () => {
    const text = document.querySelector(".now-more")?.textContent?.split(":")[0] ?? "";
    if (text && !window.said.includes(text)) window.said.push(text);
  };
  document.addEventListener("DOMContentLoaded", () =>
    new MutationObserver(note).observe(document.body, { subtree: true, childList: true, characterData: true }),
  );
}
