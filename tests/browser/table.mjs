// Somebody with a table: its columns are matched, the model learns from it, and a form asks the model.
import { faults, follow, launch, opened, participant, picture, tell, until, wanted } from "./pages.mjs";

const browser = await launch();
try {
  const one = await participant(browser, { viewport: { width: 390, height: 844 } });
  const { page } = one;
  const found = [];
  await page.goto(`${wanted.server}/#/${wanted.federation}?token=${wanted.token}`);
  await page.waitForSelector(".column-names li");
  const columns = await page.locator(".column-names li").allTextContents();
  await opened(page);
  await page.setInputFiles("#table-file", wanted.table);
  await page.waitForSelector("#table-label");
  const asked = { value: await page.inputValue("#table-label"), options: await page.locator("#table-label option").allTextContents() };
  found.push(...(await faults(one, "table, asked")));
  await picture(one, "table, asked");
  await page.selectOption("#table-label", { label: wanted.label });
  await page.waitForSelector(".found .matched");
  const matched = await page.textContent(".found .matched");
  const left = await page.textContent(".found .note.warn");
  await picture(one, "table, read");
  await page.check("#agree");
  await page.click("text=Start taking part");
  await page.waitForSelector("[data-state]");
  await follow(({ state }) => state === "finished");
  await until(one, ["ended"], 20);
  await page.waitForSelector(".try-table .answers li");
  found.push(...(await faults(one, "table, end")));
  const late = await participant(browser, { viewport: { width: 390, height: 844 }, deviceScaleFactor: 1.5 });
  await late.page.goto(`${wanted.server}/`);
  await late.page.waitForSelector(".late .try-table .answers li");
  const before = await late.page.textContent(".try-table .answers");
  await late.page.fill("#column-0", "95");
  await late.page.waitForFunction((text) => document.querySelector(".try-table .answers").textContent !== text, before);
  found.push(...(await faults(late, "table, late")));
  await picture(late, "table");
  tell({ what: "table", columns, asked, matched, left, fields: await late.page.locator(".table-fields input").count(), found });
  tell({ what: "problems", found: [...one.problems, ...late.problems] });
} finally {
  await browser.close();
}
