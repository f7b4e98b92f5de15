// Two people open the one link of a federation: the first waits, with the second it begins, and both have a model to try.
import { federation, follow, join_, launch, participant, record, state, tell, until, wanted } from "./pages.mjs";

const browser = await launch();
try {
  const people = [await participant(browser), await participant(browser)];
  await join_(people[0], { invite: wanted.token });
  const alone = await follow(({ participants }) => participants === 1, 60);
  await new Promise((resolve) => setTimeout(resolve, 3000));
  const later = await federation();
  tell({ what: "alone", state: [alone.state, later.state], starts_in: later.starts_in, round: later.round });
  await join_(people[1], { invite: wanted.token });
  const end = await follow(({ state }) => state === "finished", 120);
  for (const one of people) await until(one, ["ended"], 20);
  tell({ what: "end", round: end.round, accuracy: end.accuracy, reported: end.history.map(({ reported }) => reported) });
  tell({ what: "ledgers", rounds: await Promise.all(people.map(async (one) => (await record(one)).map(({ round }) => round))) });
  tell({ what: "states", found: await Promise.all(people.map(state)) });
  tell({ what: "problems", found: people.flatMap(({ problems }) => problems) });
} finally {
  await browser.close();
}
