"""How much noise training bears, learnt from the recorded runs of the papers: the pre-flight's words go by it.

    python -m benchmarks.noise            # measure what is not measured yet, learn the borders, write the table
    python -m benchmarks.noise --learn    # learn from what was measured

For every recorded experiment with noise, and a recorded one of the same data without, four clients rehearse a round: so
the noise beside an update is known as a pre-flight knows it. What training keeps is (accuracy - chance) / (accuracy
without noise - chance). Experiments of data that this machine does not have keep what was measured elsewhere. Results
go to benchmarks/results/noise.json, the borders to src/sordino/report/noise_levels.json.

Level = noise / update / sqrt(rounds): over T rounds, updates add up as T at best and noise as sqrt(T). A falling step
function is fitted to what is kept (pool adjacent violators); a border lies where it falls below a share.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.learning.datasets import DataUnavailable

if TYPE_CHECKING:
    from papers.experiments import Experiment
    from papers.records import Record
    from sordino.recipe import Recipe
    from sordino.runs.preflight import Preflight

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "noise.json"
TABLE = ROOT / "src" / "sordino" / "report" / "noise_levels.json"
RECORDS = ROOT / "docs" / "papers" / "records"
SHARES = (0.95, 0.8, 0.5)  #: of what is learnt without noise; below each begins the next verdict

#: experiments that differ from their noise-free one in more than noise
OTHERWISE = ("central", "clients", "rounds", "batch-norm", "privunit", "restarts", "clipped", "passes", "beta",
             "literal", "local", "smc", "relay", "group-norm")  # fmt: skip

Point = dict[str, object]


def reference(paper: str, name: str) -> str | None:
    """The experiment without noise that an experiment is held against; None where it differs in more than that."""
    if any(word in name for word in OTHERWISE):
        return None
    if paper == "ldp-fl":
        data = next(data for data in ("fashion-mnist", "cifar-10", "mnist") if data in name)
        return f"headline-{data}-noise-free"
    if paper == "personalized":
        return f"{name.partition('-')[0]}-{'votes-' if 'votes' in name else ''}none"
    if paper == "webfed":
        return "one-step-no-noise" if name.startswith("one-step") else "no-noise"
    return "non-private" if paper == "ldp-fed" else None


def pairs(paper: str) -> Iterator[tuple[Experiment, list[Record], list[Record]]]:
    """A paper's experiments with noise, with their records and those without noise."""
    from papers.experiments import experiments
    from papers.records import Records

    found: dict[str, list[Record]] = {}
    for record in Records(RECORDS / f"{paper}.jsonl").all():
        if not record.quick and record.accuracy is not None:
            found.setdefault(record.experiment, []).append(record)
    for experiment in experiments(paper):
        beside = reference(paper, experiment.id)
        if experiment.id in found and beside in found and beside != experiment.id and not experiment.same_run:
            yield experiment, found[experiment.id], found[beside]


def foresee(recipe: Recipe) -> tuple[Preflight | None, int]:
    """What a simulation of this recipe foresees before its first round, and its number of classes."""
    import torch

    from sordino.fleets.simulated import SimulatedFleet
    from sordino.learning.stacked_model import Execution
    from sordino.methods.interface import Bench
    from sordino.runs.execution import one_thread
    from sordino.runs.federation import wire
    from sordino.runs.preflight import of_rehearsal
    from sordino.runs.simulation import rehearse

    with one_thread():
        federation = wire(recipe)
        fleet = SimulatedFleet(federation.work(Bench(Execution(), torch.device("cpu"))), None)
        try:
            local = rehearse(federation, fleet)
        finally:
            fleet.close()
        return None if local is None else of_rehearsal(federation, local), len(federation.dataset.classes)


def measure(paper: str, experiment: Experiment, own: Sequence[Record], beside: Sequence[Record]) -> Point:
    """One experiment: its noise beside an update, and what training kept."""
    recipe = experiment.settings(quick=False, seed=1)
    ahead, classes = foresee(recipe)
    accuracy, without = (statistics.fmean(record.accuracy or 0.0 for record in these) for these in (own, beside))
    ratio = None if ahead is None else ahead.ratio
    return {
        "experiment": f"{paper}: {experiment.id}",
        "without_noise": beside[0].experiment,
        "ratio": ratio if ratio is not None and 0 < ratio < math.inf else None,
        "values": None if ahead is None else ahead.values,
        "rounds": recipe.rounds.count,
        "runs": len(own),
        "kept": min(1.0, max(0.0, (accuracy - 1 / classes) / (without - 1 / classes))),
    }


def levels(points: Iterable[Point]) -> list[tuple[float, float]]:
    """(level, share kept) of every point whose noise is known, by level."""
    return sorted((p["ratio"] / math.sqrt(p["rounds"]), p["kept"]) for p in points if p["ratio"])  # type: ignore[operator, arg-type]


def falling(kept: Sequence[float]) -> list[float]:
    """The falling sequence that is nearest to `kept` by least squares."""
    blocks: list[tuple[float, int]] = []
    for value in kept:
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] <= blocks[-1][0]:
            (a, n), (b, m) = blocks[-2:]
            blocks[-2:] = [((a * n + b * m) / (n + m), n + m)]
    return [mean for mean, n in blocks for _ in range(n)]


def learn(points: Iterable[Point]) -> dict[str, object]:
    """The table of the pre-flight: from which level on less than each share is kept, to two digits."""
    found = levels(points)
    fitted = falling([kept for _, kept in found])
    borders = []
    for share in SHARES:
        first = next(k for k, kept in enumerate(fitted) if kept < share)
        borders.append(float(f"{math.sqrt(found[first - 1][0] * found[first][0]):.2g}"))
    return {"kept": list(SHARES), "borders": borders, "experiments": len(found)}


def main() -> None:
    """Measure, learn and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learn", action="store_true", help="measure nothing")
    points = {str(p["experiment"]): p for p in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    if not parser.parse_args().learn:
        from papers.experiments import PAPERS

        for paper in PAPERS:
            for experiment, own, beside in pairs(paper):
                if f"{paper}: {experiment.id}" in points:
                    continue
                try:
                    point = measure(paper, experiment, own, beside)
                except DataUnavailable as error:
                    print(f"{paper}: {experiment.id} is left out: {error}")
                    continue
                points[str(point["experiment"])] = point
                print(json.dumps(point), flush=True)
        lines = ",\n".join(json.dumps(points[name], sort_keys=True) for name in sorted(points))
        RESULTS.write_text(f"[\n{lines}\n]\n")
    TABLE.write_text(f"{json.dumps(learn(points.values()))}\n")
    print(TABLE.read_text())


if __name__ == "__main__":
    main()
