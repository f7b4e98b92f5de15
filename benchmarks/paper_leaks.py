"""What leaks from each paper at the epsilon that it claims, beside a proven recipe at the same epsilon.

    python -m benchmarks.paper_leaks [--only LDP-FL WebFed] [--quick] [--device cuda]
    python -m benchmarks.paper_leaks --show      put what is recorded into docs/attacks.md and its picture

Each paper's recipe is run as it is shipped, but for the settings below, and its reports are attacked by `sordino attack
--what reconstruction --thorough`. Figures and pictures go to benchmarks/results/paper-leaks.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import sordino
from benchmarks.simulation import Rows, insert
from sordino.audits.attack_options import AttackOptions
from sordino.privacy.leaks import Leak
from sordino.recipe import Recipe
from sordino.report.leak_words import ORDER, at_most
from sordino.report.markup import Markup, element

RESULTS = Path(__file__).parent / "results" / "paper-leaks.json"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "attacks.md"
PICTURE = PAGE.parent / "images" / "attacks.svg"


@dataclass(frozen=True)
class Paper:
    """A paper's recipe, and what its epsilon is about."""

    name: str
    recipe: str
    claimed: str
    changes: tuple[str, ...] = ()


PAPERS = (
    # The randomised records are attacked, which are there before the first round: rounds would add nothing.
    Paper("LDPFL", "ldpfl-mnist", "0.5 a record", ("rounds.count=1", "training.epochs=1")),
    Paper("LDP-Fed", "ldp-fed-fashion-mnist", "alpha 1, all rounds"),
    Paper("LDP-FL", "ldp-fl-mnist", "1 a weight"),
    Paper("WebFed", "webfed-mnist", "3 a round"),
    Paper("Personalised", "personalized-fashion-mnist", "1 a round"),
)


def measure(paper: Paper, options: argparse.Namespace) -> dict[str, Any]:
    """Run a paper's recipe and attack it."""
    recipe = Recipe.load(paper.recipe, paper.changes)
    with tempfile.TemporaryDirectory() as place:
        folder, began = Path(place) / "run", time.perf_counter()
        sordino.run(recipe, folder=folder, device=options.device)
        ran = time.perf_counter()
        asked = AttackOptions(seed=options.seed, thorough=not options.quick, device=options.device)
        found = sordino.attack(folder, ["reconstruction"], asked)
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu"
    return {
        "paper": paper.name, "recipe": paper.recipe, "changes": list(paper.changes), "claimed": paper.claimed,
        "thorough": not options.quick, "seed": options.seed, "device": device, "torch": torch.__version__,
        "seconds": [round(ran - began, 1), round(time.perf_counter() - ran, 1)],
        "leaks": [leak.to_json() for leak in found.leaks],
    }  # fmt: skip


def keep(line: dict[str, Any]) -> None:
    """Put a paper's line into the file of results, in the place of an earlier one."""
    lines = recorded()
    lines[line["paper"]] = line
    kept = [lines[paper.name] for paper in PAPERS if paper.name in lines]
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def recorded() -> dict[str, dict[str, Any]]:
    """The lines of the file, by paper."""
    if not RESULTS.exists():
        return {}
    return {line["paper"]: line for line in json.loads(RESULTS.read_text(encoding="utf-8"))}


# --- the page ---------------------------------------------------------------------------------------------------------


def table(lines: dict[str, dict[str, Any]]) -> Rows:
    """For each paper: what a search for pictures finds, and what somebody with a list of candidates does."""
    rows: Rows = [["paper, claimed epsilon", "attack", "without noise", "the paper's noise", "proven, same epsilon"]]
    for line in lines.values():
        leaks = [leak for leak in map(Leak.from_json, line["leaks"]) if "whole clients" not in leak.how]
        listed = [leak for leak in leaks if leak.how.startswith("likeliest")]
        searched = [leak for leak in leaks if leak not in listed]
        for own in (searched, listed):
            cells = {leak.variant: _cell(leak) for leak in own}
            name = f"{line['paper']}, {line['claimed']}" if own is searched else ""
            rows.append([name, own[0].how.partition(",")[0], *(cells.get(variant, "") for variant in ORDER)])
    return rows


def _cell(leak: Leak) -> str:
    low, high = leak.share.interval()
    bound = f"; at most {at_most(leak.bound)}" if leak.variant == "proven" else ""
    return f"{leak.share.hits}/{leak.share.trials} ({100 * low:.1f} to {100 * high:.1f} %{bound})"


SIDE, GAP, LABELS, LINE = 44, 4, 160, 18


def grid(lines: dict[str, dict[str, Any]]) -> Markup:
    """A block for each paper: originals above what the attack makes of them."""
    blocks, top, widest = [], 0.0, 0
    for line in lines.values():
        leaks = [Leak.from_json(packed) for packed in line["leaks"]]
        first = next(leak for leak in leaks if leak.pictures)
        own = sorted(
            (leak for leak in leaks if leak.originals == first.originals), key=lambda k: ORDER.index(k.variant)
        )
        rows = {leak.variant: (_label(leak), leak.pictures) for leak in reversed(own)}
        shown = [("original", first.originals), *(rows[variant] for variant in ORDER if variant in rows)]
        blocks.append(element("text", f"{line['paper']}, claimed: {line['claimed']}", x=0.0, y=top + LINE, class_="b"))
        top += LINE + 2 * GAP
        for label, pictures in shown:
            blocks.append(element("text", label, x=0.0, y=top + SIDE / 2 + 4))
            blocks += [
                Markup(
                    f'<image x="{LABELS + k * (SIDE + GAP)}" y="{top:g}" width="{SIDE}" height="{SIDE}" '
                    f'href="data:image/png;base64,{picture}"/>'
                )
                for k, picture in enumerate(pictures)
            ]
            widest, top = max(widest, len(pictures)), top + SIDE + GAP
        top += LINE
    width = LABELS + widest * (SIDE + GAP)
    style = "text{font:13px sans-serif;fill:#222}.b{font-weight:600}image{image-rendering:pixelated}"
    ground = Markup(f'<rect x="-12" y="-6" width="{width + 24}" height="{top + 6:g}" fill="#fff"/>')
    return element(
        "svg", element("style", Markup(style)), ground, *blocks,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"-12 -6 {width + 24} {top + 6:g}",
    )  # fmt: skip


def _label(leak: Leak) -> str:
    words = {"bare": "without noise", "run": "the paper's noise"}
    return words.get(leak.variant, f"proven at epsilon {leak.figures.get('epsilon', 0):g}")


def show() -> None:
    """Put what is recorded into the page, and draw its picture."""
    insert(PAGE, {"papers": table(recorded())})
    PICTURE.write_text(grid(recorded()) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=[paper.name for paper in PAPERS], help="these papers")
    parser.add_argument("--quick", action="store_true", help="fewer records, starts and steps: minutes on two cores")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--show", action="store_true", help="measure nothing: put what is recorded into the page")
    options = parser.parse_args()
    if options.show:
        show()
        return
    for paper in PAPERS:
        if options.only is None or paper.name in options.only:
            line = measure(paper, options)
            keep(line)
            print(json.dumps({**line, "leaks": [_cell(Leak.from_json(leak)) for leak in line["leaks"]]}), flush=True)


if __name__ == "__main__":
    main()
