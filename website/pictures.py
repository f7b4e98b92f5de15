"""Take the pictures of the documentation again: `make pictures`.

Five pages train together as in `tests/browser/test_pages.py`, and the recipe `proven-digits` is run for its report.
It takes about two minutes, and needs Node.js and Chromium.
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

IMAGES = ROOT / "docs" / "images"
PORTRAIT = {"width": 360, "height": 640}
#: pictures of docs/webfed.md, and what the scenario calls them
TAKEN = {
    "join.png": "join.png", "training.png": "training.png", "tried.png": "tried.png", "live.png": "live.png",
    "phone.png": "phone-training.png",
}  # fmt: skip


def main() -> None:
    """Take all pictures, and put them where the pages show them."""
    if lacking := missing():
        sys.exit(lacking)
    chromium = browsers()[0]
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        os.environ["SORDINO_PICTURES"] = work
        options = ("--gather", "150", "--patience", "20", "--set", "rounds.count=12")
        with served(folder, "webfed-digits", *options) as server:
            play("five_pages", chromium, server, federation="webfed-digits")
            for name, own in TAKEN.items():
                shutil.copy(folder / own, IMAGES / name)
            report = folder / "run"
            command = [sys.executable, "-m", "sordino", "run", "proven-digits", "--out", str(report), "--workers", "1"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            phone = folder / "phone.html"
            phone.write_text('<style>body { margin: 0 }</style><img src="phone-training.png">')
            shots = [
                {"url": phone.as_uri(), "path": str(IMAGES / "front-page.webp"), **PORTRAIT},
                {"url": (report / "report.html").as_uri(), "path": str(IMAGES / "front-report.webp"), **PORTRAIT},
            ]
            play("../../website/pictures", chromium, server, shots=shots)
    for path in sorted(IMAGES.glob("*.[pw][ne][gb]*")):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
