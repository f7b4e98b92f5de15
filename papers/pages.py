"""Tables and plots of the reproduction, made from records alone: docs/papers/*.md and docs/reproduction.md."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from papers.experiments import PAPERS, Experiment, Gain, experiments, gains, module_of
from papers.plots import over_rounds, plot
from papers.records import Epsilons, Record, Records, only_claimed, worst
from papers.scale import examined_examples
from papers.verdicts import CLOSE, STANDARD_ERRORS, Verdict, judge_accuracy, judge_difference, sampling_error, tolerance
from sordino.report.words import counted
from sordino.storage.files import write_whole

BEGIN, END = "<!-- figures: made by `sordino reproduce` -->", "<!-- end of figures -->"


@dataclass(frozen=True)
class Row:
    """One stated figure beside ours: of an experiment's last round, or of the one that it is `at`."""

    experiment: Experiment
    records: tuple[Record, ...]
    points: tuple[float, ...] = ()  #: of a difference: what every seed gained
    test_error: float | None = None  #: of a difference: its standard error by the number of test examples
    readings: tuple[Row, ...] = ()  #: of the same figure, with what the paper leaves unsaid taken otherwise

    @property
    def accuracies(self) -> tuple[float, ...]:
        """In percent, of every seed where it is known."""
        return self.points or tuple(self.by_seed.values())

    @property
    def by_seed(self) -> dict[int, float]:
        """Accuracy in percent by seed, of an experiment's last round or of the one that it is `at`."""
        at = self.experiment.at
        found = ((r.seed, r.accuracy if at is None else dict(r.curve).get(at)) for r in self.records)
        return {seed: 100 * accuracy for seed, accuracy in found if accuracy is not None}

    @property
    def ours(self) -> float | None:
        """Mean accuracy in percent; None where nothing was run."""
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    @property
    def uncertainty(self) -> float:
        """The standard error of the mean over seeds; 0 where there is one seed, of which nothing can be said."""
        return 0.0 if self.spread is None else self.spread / math.sqrt(len(self.accuracies))

    @property
    def rounds(self) -> int | None:
        """After how many rounds; None where nothing was run."""
        return (self.experiment.at or self.records[0].rounds) if self.records else None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        figure = self.experiment.figure
        return None if figure is None or self.ours is None else self.ours - figure

    @property
    def tolerance(self) -> float | None:
        """Of a difference, the points that it may be away from the paper's; None where one seed shows no spread."""
        if self.test_error is None or self.spread is None:
            return None
        return tolerance(self.uncertainty, self.test_error)

    @property
    def verdict(self) -> Verdict:
        """How it compares with the paper."""
        figure = self.experiment.figure
        if self.ours is None:
            return "not run"
        if figure is None:
            return "not stated"
        if self.test_error is not None:
            return judge_difference(self.ours, figure, self.tolerance)
        return judge_accuracy(self.ours, figure, self.uncertainty)

    @property
    def seeds_wanted(self) -> int:
        """How many seeds the page has when all are run."""
        return self.experiment.seeds


def rows(paper: str, records: Records) -> list[Row]:
    """All experiments of a paper with what was recorded of their full runs; records of other settings do not count."""
    found: list[Row] = []
    records = records.at_once()
    for experiment in experiments(paper):
        name, settings = experiment.recorded_as, experiment.settings(quick=False, seed=1)
        own = records.of(name, quick=False, settings=settings)
        if (former := experiment.former_settings()) is not None:
            own += map(only_claimed, records.of(name, quick=False, settings=former))
        found += [Row(stage, tuple(own)) for stage in experiment.stages()]
    return found


def gain_rows(paper: str, records: Records) -> list[Row]:
    """A row for every difference that a paper states, over the seeds that all its experiments were run with."""
    found = rows(paper, records)
    return [_gain_row(gain, {r.experiment.id: r for r in found if r.experiment.at == gain.at}) for gain in gains(paper)]


def _gain_row(gain: Gain, known: Mapping[str, Row]) -> Row:
    """Its epsilons are those of its first experiment, unless it names another."""
    first, (better, worse) = known[gain.private or gain.pairs[0][0]], zip(*gain.pairs, strict=True)
    by_seed = {name: known[name].by_seed for name in (*better, *worse)}
    seeds = set.intersection(*map(set, by_seed.values()))
    points = [statistics.fmean(by_seed[a][seed] - by_seed[b][seed] for a, b in gain.pairs) for seed in sorted(seeds)]
    errors = [_test_error(known[a], known[b], gain.tested) for a, b in gain.pairs] if points else [math.inf]
    shown = replace(
        first.experiment,
        id=gain.id,
        what=gain.what,
        figure=gain.figure,
        said=gain.said,
        about=gain.about,
        derived=gain.derived,
        where=gain.where,
        fitted=gain.fitted,
        note="",
        group="",
        also=(),
        curves="",
    )
    return Row(shown, tuple(r for r in first.records if r.seed in seeds), tuple(points), statistics.fmean(errors))


def _test_error(first: Row, second: Row, tested: int | None) -> float:
    here = examined_examples(first.experiment.settings(quick=False, seed=1))
    return sampling_error(first.ours or 0.0, second.ours or 0.0, min(here, tested or here))


def privacy_cells(row: Row) -> tuple[str, str]:
    """Claimed and proven epsilon, the largest of the seeds, never without what may change and who is looking."""
    if not row.records:
        return "", ""
    stated = worst(view for record in row.records for view in record.privacy)
    first = _headline(stated)
    if first is None:
        return "none", "nothing was released"
    # A statement is of a whole run.
    whole = "" if row.experiment.at is None else f", all {row.records[0].rounds} rounds"
    claimed = "none" if first.claimed is None else f"{first.claimed:.4g} ({_terms(first)}{whole})"
    shown = [first, *_other_record_view(first, stated)]
    return claimed, "; ".join(f"{_proven(view)} ({_terms(view)}{whole})" for view in shown)


def _terms(view: Epsilons) -> str:
    return f"{view.adjacency}, {view.adversary}"


def _proven(view: Epsilons) -> str:
    return "infinite" if isinstance(view.proven, str) else f"{view.proven:.4g} at delta {view.delta:g}"


def _other_record_view(first: Epsilons, stated: Sequence[Epsilons]) -> list[Epsilons]:
    """A record added and a record exchanged are often a factor of two apart: where one is given, so is the other.

    Both of them once more where sums alone are seen, which is what noise that silos share is planned for.
    """
    if not first.adjacency.startswith("record"):
        return []
    others = [view for view in stated if view is not first and view.adjacency.startswith("record")]
    summed = [view for view in others if view.adversary.startswith("summed") and view.adversary != first.adversary]
    return [*(view for view in others if view.adversary == first.adversary), *summed]


def _headline(stated: Sequence[Epsilons]) -> Epsilons | None:
    """The row that the paper speaks of; without a claim, the one about the most: a client, or a record where proven."""
    order = ("client", "record (add/remove)", "record (replace)", "label", "coordinate")

    def place(row: Epsilons) -> tuple[bool, bool, int]:
        return row.claimed is None, isinstance(row.proven, str), order.index(row.adjacency)

    return min(stated, key=place, default=None)


Column = tuple[str, Callable[[Row], str]]

COLUMNS: tuple[Column, ...] = (
    ("experiment", lambda row: row.experiment.what),
    ("in the paper", lambda row: row.experiment.where),
    ("paper", lambda row: theirs(row.experiment)),
    ("ours", lambda row: ours(row)),
    ("difference", lambda row: "" if row.difference is None else f"{row.difference:+.2f}"),
    ("seeds", lambda row: _seeds(row)),
    ("rounds", lambda row: str(row.rounds or "")),
    ("s/round", lambda row: _seconds(row.records[0].seconds_per_round) if row.records else ""),
    ("bytes/client", lambda row: f"{row.records[0].bytes_per_client:,.0f}" if row.records else ""),
    ("claimed epsilon", lambda row: privacy_cells(row)[0]),
    ("proven epsilon", lambda row: privacy_cells(row)[1]),
)


DIFFERENCES: tuple[Column, ...] = (
    ("difference", lambda row: row.experiment.what),
    ("in the paper", lambda row: row.experiment.where),
    ("paper", lambda row: theirs(row.experiment)),
    ("ours", lambda row: ours(row)),
    ("seeds", lambda row: _seeds(row)),
    ("two standard errors by seeds", lambda row: _errors(row.uncertainty if row.spread is not None else None)),
    ("by test examples", lambda row: _errors(row.test_error if row.points else None)),
    ("verdict", lambda row: verdict_words(row)),
)


def _errors(one: float | None) -> str:
    return "" if one is None else f"{STANDARD_ERRORS * one:.2f}"


def theirs(experiment: Experiment | Gain) -> str:
    """What the paper states, in its own words where it is no plain number."""
    figure = experiment.figure
    if figure is None:
        return "not stated"
    words = experiment.said or (f"about {figure:g}" if experiment.about else f"{figure:.2f}")
    return f"{words} (derived)" if experiment.derived else words


def ours(row: Row) -> str:
    """Our mean, and the spread over seeds where there are several."""
    if row.ours is None:
        return "not run"
    return f"{row.ours:.2f}" + (f" ± {row.spread:.2f}" if row.spread is not None else "")


def _seeds(row: Row) -> str:
    run = len(row.records)
    return "" if not run else f"{run} of {row.seeds_wanted}" if run < row.seeds_wanted else str(run)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g}" if seconds < 100 else f"{seconds:.0f}"


def table(found: Sequence[Row], columns: Sequence[Column] = COLUMNS) -> str:
    """Rows as a table in Markdown."""
    return markdown([title for title, _ in columns], ([_cell(of(row)) for _, of in columns] for row in found))


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    head = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    return "\n".join([*head, *(f"| {' | '.join(cells)} |" for cells in rows)])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def paper_section(paper: str, records: Records, figures: Path) -> str:
    """The generated part of a paper's page; plots are written beside it."""
    found = rows(paper, records)
    ran, missing = [row for row in found if row.ours is not None], [row for row in found if row.ours is None]
    devices = sorted({f"{r.device} ({r.versions})" for row in found for r in row.records})
    parts = [
        "Accuracies in percent on the test set after the last round, unless a row names another; mean ± standard "
        "deviation over seeds. Epsilons are the largest of the seeds and clients, seconds and bytes those of the first "
        "seed. Made by "
        f"`sordino reproduce {paper}`" + (f"; run on {'; '.join(devices)}." if devices else ": nothing was run yet."),
        *([claims] if (claims := _claims(paper)) else []),
    ]
    parts += [table(ran)] if ran else []
    parts += ["Not run:", _not_run(missing)] if missing else []
    if differences := gain_rows(paper, records):
        parts += ["### Differences that the paper states, in points", table(differences, DIFFERENCES)]
    if added := more(paper, records):
        parts.append(added)
    notes = _by_first((row.experiment.note, row.experiment.what) for row in found if row.experiment.note)
    parts += ["Notes", "\n".join(f"* **{_listed(names)}**: {note}" for note, names in notes.items())] if notes else []
    for title, drawn in (*_plots(found), *_drawings(paper)):
        name = re.sub(r"[^a-z0-9]+", "-", f"{paper} {title}".lower()).strip("-")
        write_whole(_make_folder(figures) / f"{name}.svg", drawn.encode())
        parts.append(f"![{title}](figures/{name}.svg)")
    return "\n\n".join(parts)


def _not_run(missing: Sequence[Row]) -> str:
    """A list by the place in the paper."""

    def named(row: Row) -> str:
        return row.experiment.what + (
            "" if row.experiment.figure is None else f" (the paper: {theirs(row.experiment)})"
        )

    places = _by_first((row.experiment.where, named(row)) for row in missing)
    return "\n".join(f"* {where}: {_listed(names)}" for where, names in places.items())


def _listed(names: Iterable[str]) -> str:
    """Names that differ in their last number alone are one: clients 10 / 20 / 50."""
    parts = [re.fullmatch(r"(.*?)(\d[\d.]*)?(\D*)", name, re.DOTALL) for name in names]
    found: dict[tuple[str, str], list[str]] = {}
    for stem, number, end in (part.groups(default="") for part in parts if part):
        found.setdefault((stem, end), []).append(number)
    return "; ".join(stem + " / ".join(numbers) + end for (stem, end), numbers in found.items())


def _by_first(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """What has the same first part, in order."""
    found: dict[str, list[str]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def more(paper: str, records: Records) -> str:
    """What a paper's own module adds to its page, if anything."""
    added: Callable[[Records], str] | None = getattr(module_of(paper), "more", None)
    return added(records) if added else ""


def _claims(paper: str) -> str:
    """What is to be known about a paper's claims, where they are no epsilons."""
    return str(getattr(module_of(paper), "CLAIMS", ""))


def _drawings(paper: str) -> Iterable[tuple[str, str]]:
    """Titles and plots that a paper's own module adds."""
    drawings: Callable[[], Iterable[tuple[str, str]]] | None = getattr(module_of(paper), "drawings", None)
    return drawings() if drawings else ()


def _plots(found: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Titles and drawings: over rounds first, as papers have them, then over what was varied, two points at least."""
    curved = [row for row in found if row.experiment.curves and any(record.curve for record in row.records)]
    for title in dict.fromkeys(row.experiment.curves for row in curved):
        yield title, over_rounds(title, [row for row in curved if row.experiment.curves == title])
    for group in dict.fromkeys(row.experiment.group for row in found if row.experiment.group):
        members = [row for row in _members(found, group) if row.ours is not None or row.experiment.figure is not None]
        if sum(row.ours is not None for row in members) > 1:
            yield group, plot(group, members)


def _members(found: Sequence[Row], group: str) -> list[Row]:
    """The rows of a plot: its own, whose axis it has, then those of others that are a point of it too."""
    own = [row for row in found if row.experiment.group == group]
    more = [
        replace(row, experiment=replace(row.experiment, x=dict(row.experiment.also)[group]))
        for row in found
        if group in dict(row.experiment.also)
    ]
    return own + more


def _make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_paper(paper: str, records: Records, docs: Path) -> Path:
    """Put the generated part into a paper's page, between its marks; prose around them stays."""
    page = docs / "papers" / f"{paper}.md"
    text = page.read_text(encoding="utf-8") if page.exists() else f"# {PAPERS[paper]}\n\n{BEGIN}\n{END}\n"
    if BEGIN not in text or END not in text:
        text = text.rstrip() + f"\n\n## Figures\n\n{BEGIN}\n{END}\n"
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    section = paper_section(paper, records, docs / "papers" / "figures")
    _make_folder(page.parent)
    write_whole(page, f"{before}{BEGIN}\n\n{section}\n\n{END}{after}".encode())
    return page


OVERVIEW: tuple[Column, ...] = (
    ("experiment", lambda row: row.experiment.what),
    ("paper", lambda row: theirs(row.experiment)),
    ("ours", lambda row: ours(row)),
    ("seeds", lambda row: _seeds(row)),
    ("rounds", lambda row: str(row.rounds or "")),
    ("claimed epsilon", lambda row: privacy_cells(row)[0]),
    ("proven epsilon", lambda row: privacy_cells(row)[1]),
    ("verdict", lambda row: _with_readings(row)),
    ("command", lambda row: f"`--only {row.experiment.id}`"),
)


def verdict_words(row: Row) -> str:
    """The verdict with what it rests on: the tolerance of a difference, figures in view, and how many seeds."""
    if row.experiment.figure is None or not row.records:
        return row.verdict
    run = len(row.accuracies)
    few = f"{run} of {row.seeds_wanted} seeds" if run < row.seeds_wanted else "one seed" if run == 1 else ""
    parts = (
        row.verdict,
        "" if row.tolerance is None else f"tolerance {row.tolerance:.2f}",
        "fitted" if row.experiment.fitted else "",
        few,
    )
    words = ", ".join(part for part in parts if part)
    return f"derived, not counted ({words})" if row.experiment.derived else words


def _with_readings(row: Row) -> str:
    others = (f"; {other.experiment.instead[1]}: {ours(other)}" for other in row.readings if other.records)
    return verdict_words(row) + "".join(others)


def _stated(paper: str, records: Records) -> list[Row]:
    """A row for every accuracy that a paper states or implies, other readings of it within."""
    found = [row for row in rows(paper, records) if row.experiment.figure is not None]
    beside = [row for row in found if row.experiment.instead[0]]
    return [
        replace(row, readings=tuple(other for other in beside if other.experiment.instead[0] == row.experiment.id))
        for row in found
        if not row.experiment.instead[0]
    ]


def write_overview(records_of: Callable[[str], Records], docs: Path) -> Path:
    """docs/reproduction.md: one row for every figure of the five papers, and a count of those that they state."""
    parts = ["# The papers' figures, and ours", _overview_words()]
    for paper, title in PAPERS.items():
        found = [*_stated(paper, records_of(paper)), *gain_rows(paper, records_of(paper))]
        parts.append(f"## [{title}](papers/{paper}.md)")
        claims = f" {claimed}" if (claimed := _claims(paper)) else ""
        parts.append(f"`sordino reproduce {paper}`; {tally(found)}{claims}")
        parts.append(table(found, OVERVIEW))
    path = docs / "reproduction.md"
    write_whole(path, ("\n\n".join(parts) + "\n").encode())
    return path


def tally(found: Sequence[Row]) -> str:
    """How many stated figures had which verdict; rows with a derived figure are left out, and that is said."""
    stated = [row for row in found if not row.experiment.derived]
    by_verdict = {verdict: [row for row in stated if row.verdict == verdict] for verdict in _VERDICTS}
    words = ", ".join(_counted(verdict, own) for verdict, own in by_verdict.items() if own)
    derived = len(found) - len(stated)
    left_out = f" Not counted: {counted(derived, 'row')} with a derived figure." if derived else ""
    return f"{counted(len(stated), 'stated figure')}: {words}.{left_out}"


_VERDICTS: tuple[Verdict, ...] = ("reproduced", "undecided", "higher here", "lower here", "not run")


def _counted(verdict: Verdict, found: Sequence[Row]) -> str:
    kinds = {
        "fitted": sum(row.experiment.fitted for row in found),
        "on one seed": sum(len(row.accuracies) == 1 for row in found),
    }
    details = [f"{'' if number == len(found) else f'{number} '}{kind}" for kind, number in kinds.items() if number]
    return f"{len(found)} {verdict}" + (f" ({', '.join(details)})" if details else "")


def _overview_words() -> str:
    return (
        f"Every row is a figure of a paper. *Reproduced* means within {CLOSE:g} points. *Undecided*: the mean over our "
        "seeds has a larger standard error than that, and the paper's figure lies within it. *Fitted*: something that "
        "the paper leaves open was settled with this figure in view, so that it confirms less. *Derived*: the paper "
        "does not state the figure, it follows from what it states; such rows are not counted. A verdict on one seed, "
        "or on fewer than the page is to have, says so: one seed has no spread. Where we are further away, the "
        "paper's page says what was tried and what the paper leaves unsaid; what another reading of that comes to "
        "stands behind the verdict, if it was chosen without looking at test examples (its epsilons are on the "
        "paper's page).\n\n"
        f"*Differences* (points lost or gained) have a tolerance of their own, as {CLOSE:g} points would confirm the "
        "opposite of a difference of one. It is two standard errors: of the spread over seeds, and of the number of "
        "test examples (ours or the paper's, whichever are fewer, as if both accuracies were of separate examples). "
        "Beyond it, a difference is higher or lower here. Within it, it is reproduced if it is also within "
        f"{CLOSE:g} points and told from zero, and undecided otherwise. The papers' own spreads are unknown.\n\n"
        "Claimed epsilons are the papers' own, added up over a client's uploads where they are of one upload (WebFed). "
        "The proven ones are what Sordino can prove for the same run, with what may change and who is looking. "
        "PrivUnit's are claimed: they hold for real numbers, and the program computes with floats. Of several seeds, "
        "and of clients with epsilons of their own, the largest is shown; a run's statement has everyone's. Made by "
        "`sordino reproduce` from the records in `docs/papers/records`.\n\n"
        "In a clone, `sordino reproduce PAPER --only NAME` runs a row again, and after an interruption the same "
        "command goes on. `sordino reproduce --list` lists all experiments with their rows, recorded time and data, "
        "and `sordino reproduce --quick` is a first look at small scale, in under three minutes on two cores. "
        "Records made on another machine are taken over, and these pages made anew, by `sordino reproduce PAPER "
        "--merge PLACE --docs docs`: PLACE is the file of records, or the folder that was `--out` there. Records of "
        "runs with other settings are refused."
    )


__all__ = ["Row", "ours", "paper_section", "rows", "table", "theirs", "verdict_words", "write_overview", "write_paper"]
