"""Take the pictures of the documentation again: `make pictures`.

A visitor follows a link as in `tests/browser/test_from_link.py`, a table is tried as in `tests/browser/test_table.py`,
and the recipe `proven-digits` is run for its report. It takes about two minutes, and needs Node.js and Chromium.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.stage import browsers, missing, play, served  # noqa: E402
from tests.browser.test_from_link import link_of  # noqa: E402
from tests.browser.test_table import play_table  # noqa: E402

IMAGES = ROOT / "docs" / "images"
PORTRAIT = {"width": 360, "height": 640}
#: pictures of docs/webfed.md, as the scenarios call them
TAKEN = ("first-sight", "consent", "lobby", "countdown", "training", "noise", "record", "latecomer", "table")


def main() -> None:
    """Take all pictures, and put them where the pages show them."""
    if lacking := missing():
        sys.exit(lacking)
    chromium = browsers()[0]
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        os.environ["SORDINO_PICTURES"] = work
        with served(folder, "--gather", "10", "--pace", "1") as server:
            play("from_link", chromium, server, federation="proven-digits-pages", link=link_of(server))
            report = folder / "run"
            command = [sys.executable, "-m", "sordino", "run", "proven-digits", "--out", str(report), "--workers", "1"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            phone = folder / "phone.html"
            style = "body { margin: 0; text-align: center; background: linear-gradient(#fff 41px, #f6f5f1 41px) }"
            phone.write_text(f'<style>{style}</style><img src="front.png" width="296">')
            shots = [
                {"url": phone.as_uri(), "path": str(IMAGES / "front-page.webp"), **PORTRAIT},
                {"url": (report / "report.html").as_uri(), "path": str(IMAGES / "front-report.webp"), **PORTRAIT},
            ]
            play("../../website/pictures", chromium, server, shots=shots)
        play_table(folder, chromium)
        for name in TAKEN:
            shutil.copy(folder / f"{name}.png", IMAGES / f"{name}.png")
    for path in sorted(IMAGES.glob("*.[pw][ne][gb]*")):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
