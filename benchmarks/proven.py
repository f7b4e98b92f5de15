"""The papers' accuracies at their epsilon, proven: the tables and figures of docs/proven.md.

    python -m benchmarks.proven                            all tables (hours on two cores, minutes on a GPU)
    python -m benchmarks.proven --only headlines           one of headlines, curves, rounds, grid, splits, budgets,
                                                           clients
    python -m benchmarks.proven --only headlines --match "MNIST, epsilon 1"
    python -m benchmarks.proven --device cuda --jobs 6     several runs at a time
    python -m benchmarks.proven --validation --match ...   on validation examples (data.validation = 1/6, seeds 11 ..),
                                                           which is how settings were chosen; writes nothing
    python -m benchmarks.proven --tables                   the tables and figures again, from what is recorded

Every row is one recipe with settings: the command that gives it is `sordino run RECIPE --set ...`. The test set is read
once for each seed, after all settings were chosen. Results go to benchmarks/results/proven.json, one run at a time, and
what is recorded is not run again unless `--again` is given. The page has the rows that decide; all of them are printed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rich.console import Console
from rich.progress import track

RESULTS = Path(__file__).parent / "results" / "proven.json"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "proven.md"
SEEDS = (1, 2, 3)

Settings = Mapping[str, object]
ALONE: Settings = {"method.channel": {"kind": "direct"}}


def all_honest(clients: int) -> Settings:
    """One silo may drop out, and nobody sides with the server: no secure sum can ask for more."""
    return {"method.channel.threshold": round((clients - 1.5) / clients, 5), "method.colluding": 0}


@dataclass(frozen=True)
class Case:
    """One row: a recipe with settings."""

    table: str
    name: str
    recipe: str
    settings: Settings = field(default_factory=dict)
    seeds: Sequence[int] = SEEDS

    @property
    def key(self) -> str:
        return f"{self.table}: {self.name}"

    def command(self) -> str:
        """What a reader types to get it."""
        return " ".join(["sordino run", self.recipe, *(f"--set '{k}={shown(v)}'" for k, v in self.settings.items())])


def shown(value: object) -> str:
    """A setting as the command line takes it."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {shown(own)}" for key, own in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else json.dumps(value)


# --- what is run ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Headline:
    """A paper's figure, with our settings for it under a secure sum and with every silo alone."""

    name: str
    paper: str
    figure: float
    proven: str  #: what is proven of the paper's own run, at delta 1e-5 (docs/papers)
    recipe: str
    clients: int
    epsilon: float
    summed: Settings | None
    alone: Settings | None
    floors: tuple[float | None, float | None]
    on_page: bool = True

    @property
    def setting(self) -> str:
        """The name without its epsilon, which has a column of its own."""
        return self.name.replace(f", epsilon {self.epsilon:g}", "")

    def cases(self) -> Iterator[Case]:
        common = {"split.clients": self.clients, "clients.epsilon": self.epsilon}
        if self.summed is not None:
            yield Case("headlines", f"{self.name}, summed", self.recipe, {**common, **self.summed})
            settings = {**common, **self.summed, **all_honest(self.clients)}
            yield Case("headlines", f"{self.name}, all honest", self.recipe, settings, (1,))
        if self.alone is not None:
            yield Case("headlines", f"{self.name}, alone", self.recipe, {**common, **ALONE, **self.alone})


#: rounds after the release of second moments, and its share of the budget
SUM: Settings = {"rounds.count": 101}
LONE: Settings = {"rounds.count": 101, "method.moments": {"share": 0.1}}

HEADLINES = (
    Headline(
        "MNIST, epsilon 1, 100 clients", "LDP-FL", 96.24, "1,992", "proven-mnist", 100, 1.0, SUM, LONE, (98.3, 96.3)
    ),
    Headline(
        "Fashion-MNIST, epsilon 4, 200 clients",
        "LDP-FL",
        86.26,
        "939,000",
        "proven-fashion-mnist",
        200,
        4.0,
        SUM,
        LONE,
        (90.2, 86.0),
    ),
    Headline(
        "CIFAR-10, epsilon 10, 500 clients",
        "LDP-FL",
        61.46,
        "81 million",
        "proven-cifar-10",
        500,
        10.0,
        SUM,
        LONE,
        (69.5, None),
    ),
    Headline(
        "CIFAR-10, epsilon 10, 500 clients, public ImageNet features",
        "LDP-FL",
        61.46,
        "81 million",
        "proven-cifar-10-imagenet",
        500,
        10.0,
        {},
        {},
        (80.0, 77.0),
    ),
    Headline(
        "Fashion-MNIST, epsilon 1, 50 clients",
        "LDP-Fed",
        86.93,
        "2,800 million",
        "proven-fashion-mnist",
        50,
        1.0,
        SUM,
        LONE,
        (88.7, 84.3),
    ),
    Headline(
        "Fashion-MNIST, epsilon 0.5, 10 clients",
        "LDPFL",
        81,
        "infinite",
        "proven-fashion-mnist",
        10,
        0.5,
        SUM,
        LONE,
        (87.4, 85.0),
    ),
    Headline(
        "MNIST, epsilon 0.5, 2 clients", "LDPFL", 98, "infinite", "proven-mnist", 2, 0.5, None, LONE, (None, 97.6)
    ),
    Headline(
        "MNIST, epsilon 3, 5 clients",
        "WebFed",
        87,
        "565 million",
        "proven-mnist",
        5,
        3.0,
        {**SUM, "method.channel.threshold": 0.75},
        LONE,
        (98.7, 98.4),
    ),
    *(
        Headline(
            f"digits, epsilon {epsilon:g}, 3 clients",
            "personalised, without noise",
            88.7,
            "",
            "proven-digits",
            3,
            epsilon,
            None,
            {},
            (None, floor),
            on_page=epsilon == 10,
        )
        for epsilon, floor in ((1.0, 80.0), (5.0, 92.0), (10.0, 93.0))
    ),
    Headline(
        "MNIST, epsilon 0.1, 100 clients",
        "LDP-FL at epsilon 1",
        96.24,
        "1,992",
        "proven-mnist",
        100,
        0.1,
        SUM,
        None,
        (96.24, None),
    ),
    Headline(
        "CIFAR-10, epsilon 4, 500 clients",
        "DPSUR, trusted server",
        71.45,
        "",
        "proven-cifar-10",
        500,
        4.0,
        SUM,
        None,
        (70.0, None),
        on_page=False,
    ),
    Headline(
        "CIFAR-10, epsilon 1, 500 clients",
        "DPSUR, trusted server",
        64.41,
        "",
        "proven-cifar-10",
        500,
        1.0,
        SUM,
        None,
        (64.0, None),
        on_page=False,
    ),
)


def headlines() -> Iterator[Case]:
    for each in HEADLINES:
        yield from each.cases()


EPSILONS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)


def curves() -> Iterator[Case]:
    """Accuracy over epsilon, under a sum and alone."""
    known = {case.key for case in headlines()}
    for recipe, clients in (("proven-mnist", 100), ("proven-fashion-mnist", 50), ("proven-cifar-10", 500)):
        for epsilon in EPSILONS:
            common = {"split.clients": clients, "clients.epsilon": epsilon}
            for mode, more in (("summed", {}), ("alone", ALONE)):
                if curve_key(recipe, epsilon, mode) not in known:
                    yield Case("curves", f"{recipe}, {epsilon:g}, {mode}", recipe, {**common, **more}, (1,))


def curve_key(recipe: str, epsilon: float, mode: str) -> str:
    """Where a point of a curve is recorded: CIFAR-10's headlines are points of its curve."""
    headline = f"headlines: CIFAR-10, epsilon {epsilon:g}, 500 clients, {mode}"
    if recipe == "proven-cifar-10" and headline in {case.key for case in headlines()}:
        return headline
    return f"curves: {recipe}, {epsilon:g}, {mode}"


def grid() -> Iterator[Case]:
    """Accuracy and bytes over the grid and the bits of the sum."""
    for resolution in (6, 8, 10, 12, 14, 16):
        yield Case("grid", f"noise of 2^{resolution}", "proven-mnist", {"method.resolution": resolution}, (1, 2))
    for bits in (16, 18, 20, 22, 24):
        settings = {"method.resolution": 10, "method.bits": bits}
        yield Case("grid", f"noise of 2^10, modulo 2^{bits}", "proven-mnist", settings, (1, 2))


def splits() -> Iterator[Case]:
    """How examples are dealt: a sum over all of them does not care."""
    for name, split in (
        ("at random", {"kind": "iid", "clients": 100}),
        ("Dirichlet 0.1", {"kind": "dirichlet", "clients": 100, "beta": 0.1}),
        ("two classes each", {"kind": "shards", "clients": 100, "labels_per_client": 2}),
    ):
        for mode, more in (("summed", {}), ("alone", ALONE)):
            yield Case("splits", f"{name}, {mode}", "proven-mnist", {"split": split, **more})


#: name, our recipe with its settings, the clients' epsilons, and the recipe of paper 004 with these budgets
BUDGETS: tuple[tuple[str, str, Settings, list[float], str], ...] = (
    ("digits", "proven-digits", {}, [1.0, 1.0, 10.0], "personalized-digits"),
    ("Fashion-MNIST, 3,000 records", "proven-fashion-mnist", {"data.train_limit": 3000}, [0.05, 0.05, 1.0],
     "personalized-fashion-mnist"),
    ("Fashion-MNIST, all records", "proven-fashion-mnist", {}, [0.05, 0.05, 1.0], ""),
    ("Covertype", "proven-covertype", {}, [1.0] * 5 + [10.0] * 5, "personalized-covertype"),
)  # fmt: skip


def budgets() -> Iterator[Case]:
    """Each client its own budget, against the lowest for all and against the paper that asks for it."""
    for name, recipe, common, epsilons, paper in BUDGETS:
        clients = len(epsilons)
        for mode, more in (("summed", {}), ("alone", ALONE))[clients < 10 :]:  # three silos make no secure sum
            for whose, own in (("own budgets", epsilons), ("the lowest for all", min(epsilons))):
                settings = {**common, "split.clients": clients, "clients.epsilon": own, **more}
                yield Case("budgets", f"{name}, {whose}, {mode}", recipe, settings)
        if paper:
            yield Case("budgets", f"{name}, the paper's method, alone", paper)


ROUNDS = (1, 2, 3, 6, 11, 21, 51, 101)


def rounds() -> Iterator[Case]:
    """How many sums it takes: with one there is no whitening, with two one gradient follows the second moments."""
    for recipe, clients in (("proven-mnist", 100), ("proven-fashion-mnist", 50)):
        for count in ROUNDS:
            settings: Settings = {"split.clients": clients, "clients.epsilon": 1.0, "rounds.count": count}
            if count == 1:
                settings = {**settings, "method.moments": {"share": 0.0}}
            yield Case("rounds", f"{recipe}, {count}", recipe, settings, (1,))


CLIENTS = (100, 300, 1000, 3000, 10000, 30000)


def clients() -> Iterator[Case]:
    """A whole client protected: how many it takes."""
    features = {"kind": "oriented", "orientations": 8, "cells": 7}
    for count in CLIENTS:
        for epsilon in (1.0, 4.0, 8.0):
            settings = {
                "split.clients": count, "clients.epsilon": epsilon, "method.protects": "client",
                "method.extractor": features, "method.roots": 0, "rounds.count": 21,
            }  # fmt: skip
            yield Case("clients", f"{count} clients, epsilon {epsilon:g}, summed", "proven-mnist", settings, (1,))
            yield Case("clients", f"{count} clients, epsilon {epsilon:g}, alone", "proven-mnist", {**settings, **ALONE},
                       (1,))  # fmt: skip


def cases() -> list[Case]:
    """All rows of all tables."""
    return [*headlines(), *curves(), *rounds(), *grid(), *splits(), *budgets(), *clients()]


# --- running ----------------------------------------------------------------------------------------------------------


def measure(case: Case, seed: int, device: str, workers: int | None, validation: bool) -> dict[str, object]:
    """One run: its accuracy and what is proven of it."""
    import torch

    import sordino
    from sordino.recipe import Recipe

    torch.set_num_threads(1)
    changes = {**case.settings, "seed": seed, "evaluation.every": 10**6}
    if validation:
        changes["data.validation"] = 1 / 6
    recipe = Recipe.load(case.recipe).with_(changes)
    outcome = sordino.run(recipe, device=device, workers=workers)
    last = outcome.rounds[-1]
    proven: dict[str, float] = {}
    for row in outcome.statement.rows:
        name = f"{row.adjacency}, {row.adversary}"
        proven[name] = max(proven.get(name, 0.0), row.proven)
    return {
        "seed": seed,
        "accuracy": last.validation_accuracy if validation else outcome.accuracy,
        "proven": proven,
        "seconds": round(outcome.result.seconds, 1),
        "rounds": outcome.result.rounds,
        "bytes": round(outcome.result.bytes_up / outcome.result.rounds / outcome.result.clients),
        "device": device,
    }


def recorded() -> dict[str, list[dict[str, object]]]:
    """Rows by key, as far as they were run."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def record(key: str, command: str, row: dict[str, object]) -> None:
    """Keep one run."""
    found = recorded()
    own = [other for other in found.get(key, []) if other["seed"] != row["seed"]]
    found[key] = sorted([*own, {**row, "command": command}], key=lambda other: int(str(other["seed"])))
    RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


# --- tables and figures -----------------------------------------------------------------------------------------------


def figure_of(key: str, seeds: int = 1) -> str:
    """Mean and deviation of a row's accuracy, in per cent; empty where it was not run; says so if seeds are missing."""
    rows = recorded().get(key, [])
    if not rows:
        return ""
    found = [100 * float(str(row["accuracy"])) for row in rows]
    spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
    lacks = f" ({len(found)} of {seeds} seeds)" if len(found) < seeds else ""
    return f"{statistics.mean(found):.2f}{spread}{lacks}"


def mean_of(key: str) -> float | None:
    rows = recorded().get(key, [])
    return statistics.mean(100 * float(str(row["accuracy"])) for row in rows) if rows else None


def epsilon_of(key: str, adversary: str, adjacency: str = "record (add/remove)") -> str:
    """The largest proven epsilon of a row, against an adversary of this kind."""
    rows = recorded().get(key, [])
    found = [
        float(str(value))
        for row in rows
        for name, value in dict(row["proven"]).items()  # type: ignore[call-overload]
        if name.startswith(f"{adjacency}, {adversary}")
    ]
    if not found:
        return ""
    return f"{max(found):,.0f}" if max(found) >= 1000 else f"{max(found):.3g}"


def headline_table() -> list[list[str]]:
    rows = [["setting", "epsilon", "paper", "its epsilon, proven", "summed", "of one report", "alone"]]
    for each in HEADLINES:
        key = f"headlines: {each.name}"
        if not each.on_page or not any(figure_of(f"{key}, {mode}") for mode in ("summed", "alone")):
            continue
        rows.append([
            each.setting, f"{each.epsilon:g}", f"{each.figure:g} ({each.paper})", each.proven,
            figure_of(f"{key}, summed", 3), epsilon_of(f"{key}, summed", "server"), figure_of(f"{key}, alone", 3),
        ])  # fmt: skip
    return rows


def budget_table() -> list[list[str]]:
    """Each client its own budget: accuracy, and what is proven."""
    rows = [["", "accuracy (%)", "proven epsilon"]]
    for case in budgets():
        if case.name.startswith("digits") and case.key in recorded():
            epsilon = epsilon_of(case.key, "server") or f"{epsilon_of(case.key, 'server', 'client')} (client)"
            if isinstance(own := case.settings.get("clients.epsilon"), list):
                epsilon = f"{min(own):g} to {epsilon}"
            rows.append([case.name, figure_of(case.key, len(case.seeds)), epsilon])
    return rows


def rounds_table() -> list[list[str]]:
    """Accuracy by the number of sums."""
    columns = [count for count in ROUNDS if count not in (2, 3, 11)]
    rows = [["sums, all together at epsilon 1", *map(str, columns)]]
    for name, recipe in (("MNIST, 100 silos", "proven-mnist"), ("Fashion-MNIST, 50 silos", "proven-fashion-mnist")):
        rows.append([name, *(figure_of(f"rounds: {recipe}, {count}") for count in columns)])
    return rows


def readme_table() -> list[list[str]]:
    """The same in short: the papers' own headlines."""
    rows = [["setting", "epsilon", "paper", "its epsilon, proven", "Sordino, summed", "Sordino, alone"]]
    for each in HEADLINES:
        key = f"headlines: {each.name}"
        found = figure_of(f"{key}, summed"), figure_of(f"{key}, alone")
        if any(found) and each.proven:
            paper = f"{each.figure:g} ({each.paper})"
            rows.append([each.setting, f"{each.epsilon:g}", paper, each.proven, *(
                f"**{figure}**" if figure and float(figure.split()[0]) >= each.figure else figure for figure in found
            )])  # fmt: skip
    return rows


def tables() -> dict[str, list[list[str]]]:
    """The tables of the page."""
    return {"headlines": headline_table(), "rounds": rounds_table(), "budgets": budget_table()}


def write_page() -> None:
    """The tables between their marks in the page, and the figures beside it."""
    from benchmarks.simulation import insert

    insert(PAGE.parent.parent / "README.md", {"headlines": readme_table()})
    insert(PAGE, tables())
    write_figures(PAGE.with_name("images"))


def write_figures(folder: Path) -> None:
    """The curves, and how many clients it takes, as SVG files."""
    for name, title, marks in CURVES:
        lines = {
            mode: [
                (epsilon, found)
                for epsilon in EPSILONS
                if (found := mean_of(curve_key(name, epsilon, mode))) is not None
            ]
            for mode in ("summed", "alone")
        }
        draw(folder / f"{name}.svg", title, "epsilon, proven for a record more or less (delta 1e-5)", lines, marks)
    lines = {
        f"epsilon {epsilon:g}, {mode}": [
            (float(count), found)
            for count in CLIENTS
            if (found := mean_of(f"clients: {count} clients, epsilon {epsilon:g}, {mode}")) is not None
        ]
        for epsilon in (1.0, 4.0, 8.0)
        for mode in ("summed", "alone")
    }
    draw(folder / "proven-clients.svg", "MNIST, a whole client protected", "clients", lines, ())


Mark = tuple[float, float, str]
CURVES: tuple[tuple[str, str, tuple[Mark, ...]], ...] = (
    ("proven-mnist", "MNIST, 100 silos", (
        (1.0, 96.24, "LDP-FL, claimed"), (3.0, 87.0, "WebFed, claimed"), (0.5, 98.0, "LDPFL, claimed"),
        (1.0, 97.93, "DPSUR, trusted server"), (3.0, 98.7, "Tramèr and Boneh, trusted server"),
    )),
    ("proven-fashion-mnist", "Fashion-MNIST, 50 silos", (
        (4.0, 86.26, "LDP-FL, claimed"), (1.0, 86.93, "LDP-Fed, claimed"), (0.5, 81.0, "LDPFL, claimed"),
        (1.0, 88.38, "DPSUR, trusted server"), (4.0, 90.18, "DPSUR, trusted server"),
    )),
    ("proven-cifar-10", "CIFAR-10, 500 silos", (
        (10.0, 61.46, "LDP-FL, claimed"), (1.0, 64.41, "DPSUR, trusted server"), (4.0, 71.45, "DPSUR, trusted server"),
    )),
)  # fmt: skip
COLOURS = ("#0b6e99", "#b4430a", "#3f7d20", "#7a3e9d", "#9d7a00", "#444444")


def draw(
    path: Path, title: str, x_name: str, lines: Mapping[str, Sequence[tuple[float, float]]], marks: Sequence[Mark]
) -> None:
    """A figure as an SVG file: accuracy over a logarithmic axis, a line for each series, a cross for each mark."""
    points = [point for own in lines.values() for point in own] + [(x, y) for x, y, _ in marks]
    if not any(lines.values()):
        return
    left, top, width, height = 56, 40, 520, 300
    low, high = math.log10(min(x for x, _ in points)) - 0.05, math.log10(max(x for x, _ in points)) + 0.05
    bottom = 5 * math.floor(min(y for _, y in points) / 5)

    def at(x: float, y: float) -> tuple[float, float]:
        return left + width * (math.log10(x) - low) / (high - low), top + height * (100 - y) / (100 - bottom)

    parts = [f'<text x="{left}" y="22" font-size="15" font-weight="600">{title}</text>']
    for level in range(bottom, 101, 5 if 100 - bottom <= 50 else 10):
        y = at(10**low, level)[1]
        parts.append(f'<path d="M{left} {y:.1f}h{width}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{level} %</text>')
    for tick in sorted({x for own in lines.values() for x, _ in own}):
        x = at(tick, 100)[0]
        parts.append(f'<path d="M{x:.1f} {top + height}v5" stroke="#666"/>')
        parts.append(f'<text x="{x:.1f}" y="{top + height + 18}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 40}" text-anchor="middle">{x_name}</text>')
    for k, (name, own) in enumerate((name, own) for name, own in lines.items() if own):
        colour, dash = COLOURS[k % len(COLOURS)], "6 3" if name.endswith("alone") else "none"
        path_ = " ".join(f"{'M' if i == 0 else 'L'}{px:.1f} {py:.1f}" for i, (px, py) in enumerate(at(*p) for p in own))
        parts.append(f'<path d="{path_}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in (at(*p) for p in own)]
        y = top + 14 + 18 * k
        parts.append(f'<path d="M{left + width + 18} {y}h24" stroke="{colour}" stroke-width="2" '
                     f'stroke-dasharray="{dash}"/><text x="{left + width + 48}" y="{y + 4}">{name}</text>')  # fmt: skip
    for k, (x, y, name) in enumerate(marks):
        px, py = at(x, y)
        colour = "#444444" if "trusted" in name else "#a00"
        parts.append(f'<path d="M{px - 4:.1f} {py - 4:.1f}l8 8m-8 0l8 -8" stroke="{colour}" stroke-width="1.8"/>')
        below = top + 70 + 18 * k
        parts.append(f'<path d="M{left + width + 26} {below - 4}l8 8m-8 0l8 -8" stroke="{colour}" stroke-width="1.8"/>'
                     f'<text x="{left + width + 48}" y="{below + 4}">{name}: {y:g} at {x:g}</text>')  # fmt: skip
    body = "".join(parts)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 330} {top + height + 56}" '
        f'font-family="sans-serif" font-size="12" fill="#222"><rect width="100%" height="100%" fill="#fff"/>'
        f"{body}</svg>\n",
        encoding="utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one table")
    parser.add_argument("--match", default="", help="rows with this regular expression in their names")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--seeds", type=int, nargs="*", help="seeds in place of 1, 2 and 3")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="KEY=VALUE (JSON), for trials")
    parser.add_argument("--validation", action="store_true", help="score on validation examples; writes nothing")
    parser.add_argument("--again", action="store_true", help="run again what is recorded")
    parser.add_argument("--tables", action="store_true", help="only write tables and figures again")
    given = parser.parse_args()
    console = Console()
    changes = {key: json.loads(value) for key, _, value in (text.partition("=") for text in given.changes)}
    chosen = [c for c in cases() if (given.only in (None, c.table)) and re.search(given.match, c.name)]
    known = recorded()
    todo = [
        (Case(c.table, c.name, c.recipe, {**c.settings, **changes}), seed)
        for c in ([] if given.tables else chosen)
        for seed in given.seeds or ((11, 12) if given.validation else c.seeds)
        if given.validation or given.again or seed not in {row["seed"] for row in known.get(c.key, [])}
    ]
    with ProcessPoolExecutor(given.jobs) as pool:
        workers = None if given.device == "cpu" and given.jobs == 1 else 1
        running = {pool.submit(measure, c, seed, given.device, workers, given.validation): c for c, seed in todo}
        for done in track(as_completed(running), "runs", len(running), console=console):
            c = running[done]
            if (error := done.exception()) is not None:
                console.print(f"{c.name}: {error}", style="red")
                continue
            row = done.result()
            console.print(f"{c.name}, seed {row['seed']}: {100 * float(str(row['accuracy'])):.2f} % {row['proven']}")
            if not given.validation and not changes:
                record(c.key, c.command(), row)
    if not given.validation:
        if PAGE.exists():
            write_page()
        for each in chosen:
            if rows := recorded().get(each.key):
                figures = [100 * float(str(row["accuracy"])) for row in rows]
                spread = statistics.stdev(figures) if len(figures) > 1 else 0.0
                console.print(f"{each.key}: {statistics.mean(figures):.2f} ± {spread:.2f} ({len(figures)} seeds)")


if __name__ == "__main__":
    main()
