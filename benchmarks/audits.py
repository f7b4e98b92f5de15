"""One run of each method, run and audited: the table in docs/audit.md.

    python -m benchmarks.audits [--only NAME] [--quick]

Every run is a shipped recipe with some settings changed, so that all of them take a few minutes on one core. The table
is put between its marks in docs/audit.md; --quick (few trials and canaries) and --only print it and write nothing.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.simulation import insert
from sordino.audits.findings import AuditOptions
from sordino.audits.lower_bound import REFUTED, AuditRow
from sordino.audits.run_audit import Audit, audit
from sordino.recipe import Recipe
from sordino.report.words import figure, lower, upper
from sordino.runs.simulation import run

PAGE = Path(__file__).parent.parent / "docs" / "audit.md"
TABLE = "audits of runs"
HEAD = ["run", "attack sees", "adjacency, adversary", "claimed", "proven", "audited", "cap", "trials"]


@dataclass(frozen=True)
class Job:
    """A shipped recipe, and what is changed in it."""

    recipe: str
    changes: tuple[str, ...] = ()
    client: int | None = None  #: None: whoever lost most

    @property
    def name(self) -> str:
        changed = ", ".join(f"`{change}`" for change in self.changes)
        whom = "" if self.client is None else f", client {self.client}"
        return (f"`{self.recipe}` with {changed}" if changed else f"`{self.recipe}`") + whom


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
)  # fmt: skip


def carried_out(job: Job, asked: AuditOptions) -> Audit:
    """The run, in a folder that is gone afterwards, and its audit."""
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "run"
        run(Recipe.load(job.recipe, list(job.changes)), folder=folder, workers=1)
        found = audit(folder, replace(asked, client=job.client))
        found.write()
        return found


def cells(name: str, row: AuditRow) -> list[str]:
    at = f" at delta {upper(row.delta)}" if row.delta else ""
    claimed = "" if row.claimed is None else figure(row.claimed)
    if row.verdict == REFUTED:
        claimed += " (refuted)"
    own_data = " (own records against another's)" if "its own records" in row.attack else ""
    return [
        name,
        f"{row.mechanism}: {row.unit}{own_data}",
        f"{row.adjacency}, {row.adversary}",
        claimed,
        f"{upper(row.proven)}{at}",
        f">= {lower(row.audited)}",
        f"{row.cap:.1f}",
        f"{row.trials:,}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="the recipe whose runs are audited")
    parser.add_argument("--quick", action="store_true", help="few trials and canaries; nothing is written")
    options = parser.parse_args()
    asked = AuditOptions(trials=2000, canaries=200) if options.quick else AuditOptions()
    rows = [HEAD]
    for job in JOBS:
        if options.only not in (None, job.recipe):
            continue
        began = time.monotonic()
        found = carried_out(job, asked)
        print(f"{job.name}, {found.whom}: {time.monotonic() - began:.0f} s", flush=True)
        for number, row in enumerate(found.rows):
            rows.append(cells("" if number else job.name, row))
            print("   ", " | ".join(rows[-1][1:]), f"| {row.verdict}", flush=True)
        for left_out in found.found.left_out:
            print(f"    not audited: {left_out}", flush=True)
        if found.violated:
            raise SystemExit(f"{job.name}: an experiment contradicts a proof; nothing was written")
    if not (options.quick or options.only):
        insert(PAGE, {TABLE: rows})


if __name__ == "__main__":
    main()
