// Two people open the one link of a federation: the first waits, with the second the operator starts it at /live, both
// have a model, and the operator begins it again.
import { faults, federation, follow, join_, launch, participant, record, state, tell, until, wanted } from "./pages.mjs";

const browser = await launch();
try {
  const [operator, ...people] = [await participant(browser), await participant(browser), await participant(browser)];
  const { page } = operator;
  await page.goto(`${wanted.server}/live`);
  await page.waitForSelector(".control:not([hidden])");
  const start = page.getByRole("button", { name: "Start now" });
  tell({ what: "invite", link: await page.textContent(".link"), disabled: await start.isDisabled() });

  await join_(people[0], { invite: wanted.token });
  await follow(({ participants }) => participants === 1, 60);
  await new Promise((resolve) => setTimeout(resolve, 2500));
  const alone = await federation();
  tell({ what: "alone", state: alone.state, starts_in: alone.starts_in, round: alone.round, disabled: await start.isDisabled() });

  await join_(people[1], { invite: wanted.token });
  await page.waitForFunction(() => !document.querySelector(".control button").disabled, null, { timeout: 30_000 });
  tell({ what: "faults", found: await faults(operator, "live, waiting") });
  await start.click();
  const end = await follow(({ state }) => state === "finished", 120);
  for (const one of people) await until(one, ["ended"], 20);
  tell({ what: "end", round: end.round, accuracy: end.accuracy, reported: end.history.map(({ reported }) => reported) });
  tell({ what: "ledgers", rounds: await Promise.all(people.map(async (one) => (await record(one)).map(({ round }) => round))) });
  tell({ what: "states", found: await Promise.all(people.map(state)) });

  await page.getByRole("button", { name: "Begin again" }).click();
  const again = await follow(({ federation }) => federation !== end.federation, 60);
  await page.waitForFunction(() => document.querySelector(".control button:not([hidden])")?.disabled, null, { timeout: 30_000 });
  tell({ what: "again", state: again.state, round: again.round, link: again.link === end.link });
  tell({ what: "problems", found: [operator, ...people].flatMap(({ problems }) => problems) });
} finally {
  await browser.close();
}
