"""Seconds of commands that only look something up, from the shell's call to their end.

    python -m benchmarks.commands [--passes N] [--json benchmarks/results/commands.json]
    python -m benchmarks.commands --show      put the recorded figures into docs/performance.md

Bytecode is written before the first pass. Of the passes, which take the commands in turn, the best of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.simulation import PAGE, Rows, insert

RESULTS = Path(__file__).parent / "results" / "commands.json"
GOAL, PASSES = 0.3, 7
COMMANDS = (
    "--help",
    "recipes",
    "plan --mechanism two-point --values 650 --rounds 10 --epsilon 50 --clients 20 --update-norm 0.4",
    "plan two-point-digits --epsilon 50 --delta 1e-5",
)
TORCH = "import torch"  #: what a plan for a recipe's own model begins with


def run(arguments: list[str]) -> dict[str, float]:
    """Seconds of one call of Python, and of the processor."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": seconds, "processor": sum(after[:2]) - sum(before[:2])}


def measure(passes: int) -> dict[str, Any]:
    calls = {f"sordino {words}": ["-m", "sordino", *shlex.split(words)] for words in COMMANDS}
    calls[f'python -c "{TORCH}"'] = ["-c", TORCH]
    found: dict[str, dict[str, float]] = {}
    for number in range(passes + 1):
        for name, arguments in calls.items():
            took = run(arguments)
            if number:  # the first is for bytecode and for the system's cache of files
                kept = found.get(name, took)
                found[name] = {what: min(kept[what], took[what]) for what in took}
    machine = {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    return {"machine": machine, "passes": passes, "commands": found}


def table(kept: dict[str, Any]) -> Rows:
    """The recorded figures as the page has them."""
    rows: Rows = [["command", "seconds", "of the processor", "wanted"]]
    for name, own in kept["commands"].items():
        wanted = f"under {GOAL:g} s" if name.startswith("sordino") else ""
        rows.append([f"`{name}`", f"{own['seconds']:.2f} s", f"{own['processor']:.2f} s", wanted])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=PASSES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", action="store_true", help="measure nothing: put what is recorded into the page")
    options = parser.parse_args()
    if options.show:
        insert(PAGE, {"starts": table(json.loads(RESULTS.read_text(encoding="utf-8")))})
        return
    found = measure(options.passes)
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
