// One page under a key that the test knows. The shipped page has no place for such a key: it is put into its files on the
// way to the browser, where the operating system would be asked for one.
import { join_, launch, participant, tell, wanted } from "./pages.mjs";

const PRELUDE = `SubtleCrypto.prototype.generateKey = function () {
  return this.importKey("raw", new Uint8Array(32).fill(${wanted.key}), "AES-CTR", false, ["encrypt"]);
};\n`;

const browser = await launch();
try {
  for (const name of wanted.federations) {
    wanted.federation = name;
    const one = await participant(browser);
    await one.context.route("**/assets/*.js", async (route) => {
      const response = await route.fetch();
      await route.fulfill({ response, body: PRELUDE + (await response.text()) });
    });
    await join_(one, { before: consent, invite: wanted.tokens[name] });
    await one.page.waitForFunction(
      (count) => document.querySelectorAll(".sent tbody tr").length >= count,
      wanted.reports,
      { timeout: 60_000 },
    );
    tell({ what: name, sent: one.sent, received: one.received, requests: one.requests });
    await one.context.close();
  }
} finally {
  await browser.close();
}

async function consent(page) {
  for (const box of ["#accept-claimed", "#accept-unbounded"])
    if (await page.locator(box).count()) await page.check(box);
}
