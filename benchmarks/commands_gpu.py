"""Seconds from the command to the report on one GPU: `sordino run RECIPE --device cuda`, the whole process.

    python -m benchmarks.commands_gpu [--sordino sordino-bundle/sordino] [--json benchmarks/results/commands-gpu.json]
    python -m benchmarks.commands_gpu --show      put the recorded figures into docs/performance.md

The first run of a recipe compiles and is shown apart; of the others, the best and the worst are shown. What the model
learns is compared with a run on the processor of a few rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.simulation import PAGE, Rows, insert

RESULTS = Path(__file__).parent / "results" / "commands-gpu.json"
RECIPES = ("ldp-fl-mnist", "proven-mnist")
GOAL, PASSES, FEW = 10.0, 3, 3


def run(sordino: str, recipe: str, out: Path, *options: str) -> tuple[float, dict[str, Any]]:
    """Seconds of one command, and its timeline."""
    began = time.perf_counter()
    subprocess.run(
        [sordino, "run", recipe, "--timing", "--out", str(out), *options], check=True, stdout=subprocess.DEVNULL
    )
    took = time.perf_counter() - began
    return took, json.loads((out / "timing.json").read_text(encoding="utf-8"))


def same_model(sordino: str, recipe: str, folder: Path) -> bool:
    """Whether a few rounds end with the same bits on both devices."""
    digests = set()
    for device in ("cpu", "cuda"):
        run(sordino, recipe, folder / device, "--device", device, "--set", f"rounds.count={FEW}")
        digests.add(hashlib.sha256((folder / device / "model.safetensors").read_bytes()).hexdigest())
    return len(digests) == 1


def measure(sordino: str) -> dict[str, Any]:
    found: dict[str, Any] = {"passes": PASSES, "recipes": {}}
    with tempfile.TemporaryDirectory() as folder:
        for recipe in RECIPES:
            runs = [run(sordino, recipe, Path(folder) / f"{recipe}-{k}", "--device", "cuda") for k in range(PASSES + 1)]
            found["recipes"][recipe] = {
                "first": runs[0][0], "later": [took for took, _ in runs[1:]], "timeline": min(runs[1:])[1],
            }  # fmt: skip
            print(json.dumps({recipe: found["recipes"][recipe]}), flush=True)
        found["same bits as on a processor"] = same_model(sordino, "proven-mnist", Path(folder))
    return found


def table(kept: dict[str, Any]) -> Rows:
    """The recorded figures as the page has them."""
    rows: Rows = [["recipe", "first run", "later runs", "wanted"]]
    for recipe, own in kept["recipes"].items():
        later = f"{min(own['later']):.1f} to {max(own['later']):.1f} s"
        rows.append([f"`{recipe}`", f"{own['first']:.1f} s", later, f"under {GOAL:g} s"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sordino", default="sordino", help="the command to measure")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", action="store_true", help="measure nothing: put what is recorded into the page")
    options = parser.parse_args()
    if options.show:
        insert(PAGE, {"commands": table(json.loads(RESULTS.read_text(encoding="utf-8")))})
        return
    found = measure(options.sordino)
    print(json.dumps(found["same bits as on a processor"]), table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
