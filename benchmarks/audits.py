"""One run of each method, run and audited: the table in docs/audit.md.

    python -m benchmarks.audits [--only NAME] [--quick]

Every run is a shipped recipe with some settings changed, so that all take a few minutes on one core. All rows go
to benchmarks/results/audits.json, and one of each run into the table of docs/audit.md; --quick (few trials and
canaries) and --only print the rows and write nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.simulation import insert
from sordino.audits.findings import AuditOptions
from sordino.audits.lower_bound import REFUTED
from sordino.audits.run_audit import Audit, audit
from sordino.recipe import Recipe
from sordino.report.words import figure, lower, upper
from sordino.runs.simulation import run

PAGE = Path(__file__).parent.parent / "docs" / "audit.md"
RESULTS = Path(__file__).parent / "results" / "audits.json"
TABLE = "audits of runs"
HEAD = ["run", "attack sees", "adjacency, adversary", "claimed", "proven", "audited >="]


@dataclass(frozen=True)
class Job:
    """A shipped recipe, and what is changed in it."""

    recipe: str
    changes: tuple[str, ...] = ()
    client: int | None = None  #: None: whoever lost most

    @property
    def command(self) -> str:
        """What a reader types to get the run."""
        return " ".join(["sordino run", self.recipe, *(f"--set '{change}'" for change in self.changes)])


DIGITS = ("data.source=digits",)
JOBS = (
    Job("fedavg-digits"),
    Job("two-point-digits"),
    Job("ldp-fl-digits"),
    Job("personalized-digits", client=0),
    Job("webfed-mnist", (*DIGITS, "data.train_limit=0", "model.name=logistic", "rounds.count=2")),
    Job("ldp-fed-fashion-mnist", (*DIGITS, "rounds.count=20")),
    Job("ldpfl-digits"),
    Job(
        "ldpfl-mnist-public",
        (*DIGITS, "method.extractor.cells=4", "clients.epsilon=2.0", "clients.budget.limit=2.0"),
    ),
    Job("quickstart"),
    Job("quickstart", ("method.target.epsilon=1.0", "clients.budget.limit=1.0")),
    Job(
        "ldp-fed-fashion-mnist-hybrid",
        (*DIGITS, "model.name=logistic", "model.options={}", "split.clients=9", "rounds.count=20"),
    ),
    Job(
        "central-dp-mnist",
        (
            *DIGITS, "split.clients=20", "model.options.hidden=[16]", "method.clip=1.0", "clients.budget.basis=proven",
            "clients.budget.limit=20",
        ),
    ),
    Job("proven-digits"),
    Job("proven-mnist", ("data.train_limit=6000", "split.clients=10", "rounds.count=11")),
)  # fmt: skip


def carried_out(job: Job, asked: AuditOptions) -> Audit:
    """The run, in a folder that is gone afterwards, and its audit."""
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "run"
        run(Recipe.load(job.recipe, list(job.changes)), folder=folder, workers=1)
        found = audit(folder, replace(asked, client=job.client))
        found.write()
        return found


def table(recorded: list[dict[str, Any]]) -> list[list[str]]:
    """One row of each run: the first with a refuted claim, else the first of all; none where nothing is proven."""
    rows = [HEAD]
    for command in dict.fromkeys(row["command"] for row in recorded):
        proven = [row for row in recorded if row["command"] == command and _number(row) < math.inf]
        for row in [*(row for row in proven if row["verdict"] == REFUTED), *proven][:1]:
            claimed = "" if row["claimed"] is None else figure(row["claimed"])
            rows.append([
                f"`{row['recipe']}`", row["unit"], f"{row['adjacency']}, {row['adversary']}",
                claimed + " (refuted)" * (row["verdict"] == REFUTED), upper(_number(row)),
                lower(row["audited"]) + " (cap)" * (row["audited"] > 0.99 * row["cap"]),
            ])  # fmt: skip
    return rows


def _number(row: dict[str, Any]) -> float:
    return float("inf" if row["proven"] == "infinite" else row["proven"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="the recipe whose runs are audited")
    parser.add_argument("--quick", action="store_true", help="few trials and canaries; nothing is written")
    options = parser.parse_args()
    asked = AuditOptions(trials=2000, canaries=200) if options.quick else AuditOptions()
    rows: list[dict[str, Any]] = []
    for job in JOBS:
        if options.only not in (None, job.recipe):
            continue
        began = time.monotonic()
        found = carried_out(job, asked)
        print(f"{job.command}, {found.whom}: {time.monotonic() - began:.0f} s", flush=True)
        for row in found.rows:
            rows.append({"recipe": job.recipe, "command": job.command, **row.to_json()})
            print(f"    {row.unit}: {upper(row.proven)} {lower(row.audited)} | {row.verdict}", flush=True)
        for left_out in found.found.left_out:
            print(f"    not audited: {left_out}", flush=True)
        if found.violated:
            raise SystemExit(f"{job.command}: an experiment contradicts a proof; nothing was written")
    if not (options.quick or options.only):
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        insert(PAGE, {TABLE: table(rows)})


if __name__ == "__main__":
    main()
