// Pictures of pages, as WebP: { shots: [{ url, path, width, height }] }.
import { writeFileSync } from "node:fs";
import { launch, wanted } from "../tests/browser/pages.mjs";

const browser = await launch();
try {
  for (const { url, path, width, height } of wanted.shots) {
    const context = await browser.newContext({ viewport: { width, height }, colorScheme: "light" });
    const page = await context.newPage();
    await page.goto(url);
    const session = await context.newCDPSession(page);
    const shot = await session.send("Page.captureScreenshot", { format: "webp", quality: 82 });
    writeFileSync(path, Buffer.from(shot.data, "base64"));
    await context.close();
  }
} finally {
  await browser.close();
}
