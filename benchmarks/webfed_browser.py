"""WebFed's experiment in real web pages, beside the same federation of native clients.

    python -m benchmarks.webfed_browser [--rounds 200] [--images 100] [--only NAME] [--quick]

Five pages in one Chromium, each with a hundred images of MNIST, train LeNet: without noise, and with the noise of
epsilon 6 and 3 on the weights. The server is `sordino serve`, the native clients are those of `sordino run`. Records go
to `docs/papers/records/webfed-browser.jsonl`, one line for each federation, as far as it came in its `--minutes`;
the table of `docs/papers/webfed.md` is made of them (with `--quick`: two rounds, nothing is written).

It needs what the browser tests need: Node, the packages of `web/`, the built page, a Chromium.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rich.console import Console
from tests.browser.stage import Browser, browsers, missing, play, served

from benchmarks.simulation import Rows, insert
from sordino import Recipe
from sordino.report.words import figure
from sordino.runs.simulation import run

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "papers" / "webfed.md"
RECORDS = ROOT / "docs" / "papers" / "records" / "webfed-browser.jsonl"
RECIPE = "webfed-mnist"
PAGES = 5
SHOWN = (50, 200)  #: rounds of the table
SETTINGS = ("no noise", "epsilon 6", "epsilon 3")
NOISE_FREE = ('method.mechanism={ name = "none" }', "method.range=", "clients.epsilon=")
Curve = list[tuple[int, float, float, float]]  #: round, accuracy, loss, seconds since the first round began


@dataclass(frozen=True)
class Record:
    """A federation, as far as it came."""

    setting: str
    where: str  #: "pages" or "native"
    images: int
    rounds: int
    fingerprint: str
    curve: Curve
    seconds: float
    proven: str
    claimed: str
    machine: dict[str, Any]

    def after(self, round: int) -> float | None:
        """The accuracy after a round, in percent."""
        return next((100 * accuracy for at, accuracy, _, _ in self.curve if at == round), None)


def settings(images: int, rounds: int) -> dict[str, tuple[str, ...]]:
    """What is changed in the recipe for each setting: C/m, the steps of a round and their size stay what they are."""
    batch = max(1, images // 10)
    common = (f"data.train_limit={PAGES * images}", f"training.batch_size={batch}", f"rounds.count={rounds}")
    common += (f"evaluation.every={min(10, rounds)}",)
    noisy = (f"method.mechanism.records={images}", f"method.range.radius={0.03 * images:g}")
    return {
        "no noise": (*common, *NOISE_FREE),
        "epsilon 6": (*common, *noisy, "clients.epsilon=6.0"),
        "epsilon 3": (*common, *noisy),
    }


def curve(history: Iterable[tuple[int, float | None, float | None, float]]) -> Curve:
    """Accuracy and loss where they were measured, over rounds and over time."""
    found, clock = [], 0.0
    for round, accuracy, loss, seconds in history:
        clock += seconds
        if accuracy is not None and loss is not None:
            found.append((round, round_off(accuracy), round_off(loss), round_off(clock)))
    return found


def round_off(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")


def in_pages(setting: str, overrides: Sequence[str], browser: Browser, seconds: float) -> Record:
    """The federation of five pages."""
    recipe = Recipe.load(RECIPE, list(overrides))
    with tempfile.TemporaryDirectory() as folder:
        changes = [part for override in overrides for part in ("--set", override)]
        with served(Path(folder), RECIPE, "--gather", "600", *changes) as server:
            began = time.perf_counter()
            told = play("experiment", browser, server, seconds + 60, federation=RECIPE, pages=PAGES, patience=seconds)
            taken = time.perf_counter() - began
    end, pages = told["end"], told["pages"]
    if end["state"] == "failed" or pages["problems"]:
        raise SystemExit(f"the pages did not come to the end: {end['why']} {pages['problems']}")
    names = ("round", "accuracy", "loss", "seconds")
    points = curve(tuple(entry[name] for name in names) for entry in end["history"])
    where = {key: pages[key] for key in ("browser", "device", "joined", "first")}
    return record(setting, "pages", recipe, points, taken, end["statement"], where)


def native(setting: str, overrides: Sequence[str]) -> Record:
    """The same federation of native clients, in this process."""
    recipe = Recipe.load(RECIPE, list(overrides))
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        outcome = run(recipe, folder=Path(folder) / "run", workers=1)
        taken = time.perf_counter() - began
    points = curve((each.round, each.accuracy, each.loss, each.seconds) for each in outcome.rounds)
    return record(setting, "native", recipe, points, taken, outcome.statement.to_json()["rows"], {})


def record(
    setting: str, where: str, recipe: Recipe, points: Curve, seconds: float, rows: Any, more: dict[str, Any]
) -> Record:
    """All that is kept of a federation."""
    whole = next(row for row in rows if row["adjacency"] == "client" and row["adversary"] == "server")
    claimed = whole["claimed"]["epsilon"] if whole["claimed"] else "none"
    machine = {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version(), **more}
    return Record(
        setting, where, recipe.data.train_limit // PAGES, points[-1][0], recipe.fingerprint, points,
        round_off(seconds), str(whole["proven"]["epsilon"]), str(claimed), machine,
    )  # fmt: skip


def read_records() -> dict[tuple[str, str], Record]:
    """The newest record of each setting and place."""
    lines = RECORDS.read_text(encoding="utf-8").splitlines() if RECORDS.exists() else []
    found = [Record(**json.loads(line)) for line in lines]
    return {(each.setting, each.where): each for each in found}


def keep(new: Record) -> None:
    """Put a record in the place of the older one of its kind."""
    known = {**read_records(), (new.setting, new.where): new}
    RECORDS.write_text("".join(json.dumps(asdict(each)) + "\n" for each in known.values()), encoding="utf-8")


def tables(known: dict[tuple[str, str], Record]) -> dict[str, Rows]:
    """The table of the page."""
    titles = ["setting", "where", *(f"round {round}" for round in SHOWN)]
    rows: Rows = [[*titles, "seconds a round", "claimed", "proven"]]
    for setting in SETTINGS:
        for where in ("pages", "native"):
            if (found := known.get((setting, where))) is None:
                continue
            points = ["" if (point := found.after(round)) is None else f"{point:.1f}" for round in SHOWN]
            last = found.curve[-1]
            pace = f"{last[3] / last[0]:.1f}"
            rows.append([setting, where, *points, pace, shown(found.claimed), shown(found.proven)])
    return {"pages": rows}


def shown(epsilon: str) -> str:
    """An epsilon as statements print it."""
    return figure(math.inf) if epsilon == "infinity" else epsilon if epsilon == "none" else figure(float(epsilon))


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--images", type=int, default=100, help="of each page")
    parser.add_argument("--only", choices=SETTINGS, action="append", help="this setting; may be repeated")
    parser.add_argument("--where", choices=["pages", "native"], action="append", help="may be repeated")
    parser.add_argument("--minutes", type=float, default=60, help="for each federation of pages, at most")
    parser.add_argument("--quick", action="store_true", help="two rounds of 20 images; nothing is written")
    asked = parser.parse_args()
    console = Console()
    places = asked.where or ["native", "pages"]
    if "pages" in places and missing():
        raise SystemExit(missing())
    images, rounds = (20, 2) if asked.quick else (asked.images, asked.rounds)
    for setting, overrides in settings(images, rounds).items():
        if asked.only and setting not in asked.only:
            continue
        for where in places:
            if where == "native":
                done = native(setting, overrides)
            else:
                done = in_pages(setting, overrides, browsers()[0], 60 * asked.minutes)
            reached = f"{100 * done.curve[-1][1]:.1f} % after {done.rounds} rounds"
            console.print(f"{setting}, {where}: {reached}, {done.seconds:.0f} s")
            if not asked.quick:
                keep(done)
                insert(PAGE, tables(read_records()))


if __name__ == "__main__":
    main()
