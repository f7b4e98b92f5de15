// The documentation in a browser: what is above the fold, whether search finds, what is too wide, what is loaded.
import { faults, launch, participant, tell, wanted } from "./pages.mjs";

const SCREEN = { width: 1280, height: 800 };
const PHONE = { width: 390, height: 844 };
const WIDE = ["reproduction.html", "recipe-keys.html", "papers/ldp-fl.html"]; // pages with wide tables

const browser = await launch();
try {
  const people = [];
  const look = async (viewport, colorScheme) => {
    const one = await participant(browser, { viewport, colorScheme });
    people.push(one);
    return one;
  };
  const reader = await look(SCREEN, "light");
  await reader.page.goto(`${wanted.site}/index.html`);
  await reader.page.waitForFunction(() => [...document.images].every(({ naturalWidth }) => naturalWidth > 0));
  const lowest = await reader.page.evaluate(() =>
    [...document.querySelectorAll(".front > *, .front img")].map((part) => part.getBoundingClientRect().bottom),
  );
  tell({ what: "fold", parts: lowest.length, lowest: Math.max(...lowest) });

  await reader.page.click(".md-search__input");
  await reader.page.keyboard.type("shuffler", { delay: 50 });
  await reader.page.waitForSelector(".md-search-result__link", { timeout: 60_000 });
  const links = await reader.page.$$eval(".md-search-result__link", (all) => all.map((link) => link.href));
  tell({ what: "search", links });

  const found = [];
  const looks = [
    [SCREEN, "dark", ["index.html", "api/learning.html"]],
    [PHONE, "light", ["index.html", "try.html"]],
  ];
  for (const [viewport, colorScheme, pages] of wanted.looks ? looks : []) {
    const one = await look(viewport, colorScheme);
    for (const name of pages) {
      await one.page.goto(`${wanted.site}/${name}`);
      found.push(...(await faults(one, `${name}, ${viewport.width} px, ${colorScheme}`)));
    }
    for (const name of WIDE) {
      await one.page.goto(`${wanted.site}/${name}`);
      const beyond = await one.page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      if (beyond > 0) found.push(`${name}: ${beyond} px wider than ${viewport.width}`);
    }
    const scheme = await one.page.evaluate(() => document.body.dataset.mdColorScheme);
    if (scheme !== (colorScheme === "dark" ? "slate" : "default")) found.push(`${colorScheme}: shown as ${scheme}`);
  }
  tell({ what: "faults", found });
  tell({
    what: "loaded",
    urls: [...new Set(people.flatMap(({ requests }) => requests.map(({ url }) => url)))],
    problems: people.flatMap(({ problems }) => problems),
  });
} finally {
  await browser.close();
}
