// A federation ends and begins anew under the same address: for one who took part, and for one who came late.
import { follow, join_, launch, participant, record, tell, until, wanted } from "./pages.mjs";

const browser = await launch();
try {
  const one = await participant(browser);
  await join_(one, { invite: wanted.tokens[0] });
  const { federation: before } = await follow(({ state }) => state === "finished");
  await until(one, ["ended"], 20);
  const late = await participant(browser);
  await late.page.goto(`${wanted.server}/`);
  await late.page.waitForSelector(".late");
  await fetch(`${wanted.server}/api/federations/${wanted.federation}/again`, { method: "POST", body: "{}", headers: { "Content-Type": "application/json" } });
  const { federation: after } = await follow(({ state }) => state === "waiting");
  await one.page.waitForSelector("#renewed", { timeout: 40_000 });
  const shown = (await record(one)).length;
  await one.page.click("#renewed button");
  await one.page.waitForSelector("#join");
  await late.page.waitForSelector("#join", { timeout: 40_000 });
  tell({ what: "again", before, after, shown, problems: [...one.problems, ...late.problems] });
  await one.page.click("text=My record");
  await one.page.waitForSelector(".record tbody tr");
  const federations = await one.page.locator(".record tbody tr").evaluateAll((rows) => rows.map(({ dataset }) => dataset.federation));
  tell({ what: "record", federations });
} finally {
  await browser.close();
}
