"""Tables and plots of the reproduction, made from records alone: docs/papers/*.md and docs/reproduction.md."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from papers.experiments import PAPERS, Experiment, Gain, experiments, gains, module_of
from papers.plots import Pair, over_rounds, pairs, plot
from papers.records import Epsilons, Record, Records, only_claimed, worst
from papers.scale import examined_examples
from papers.verdicts import Verdict, judge_accuracy, judge_difference, sampling_error, tolerance
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
    ("seeds", lambda row: _seeds(row)),
    ("claimed epsilon", lambda row: privacy_cells(row)[0]),
    ("proven epsilon", lambda row: privacy_cells(row)[1]),
    ("verdict", lambda row: _with_readings(row)),
)


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


def table(found: Sequence[Row], columns: Sequence[Column] = COLUMNS) -> str:
    """Rows as a table in Markdown."""
    return markdown([title for title, _ in columns], ([_cell(of(row)) for _, of in columns] for row in found))


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    head = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    return "\n".join([*head, *(f"| {' | '.join(cells)} |" for cells in rows)])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def shown(paper: str, records: Records) -> list[Row]:
    """The rows of a paper's page: those that its module names, else a row for every figure that the paper states."""
    found = _all_rows(paper, records)
    names: Sequence[str] = getattr(module_of(paper), "ON_PAGE", ())
    return [row for name in names for row in found if row.experiment.id == name] if names else _stated(found)


def paper_section(paper: str, records: Records) -> str:
    """The generated part of a paper's page."""
    found = shown(paper, records)
    devices = sorted({f"{r.device} ({r.versions})" for row in found for r in row.records})
    parts = [
        "Test accuracy in percent after the last round, mean ± standard deviation over seeds. Epsilons are the largest "
        "of seeds and clients. [What verdicts mean](../reproduction.md#fine-print). All recorded rows: "
        f"`sordino reproduce {paper} --merge docs`. "
        + (f"Run on {'; '.join(devices)}." if devices else "Nothing was run yet."),
        *([claims] if (claims := _claims(paper)) else []),
        table(found),
    ]
    notes = _by_first((row.experiment.note, row.experiment.what) for row in found if row.experiment.note)
    parts += ["\n".join(f"* **{_listed(names)}**: {note}" for note, names in notes.items())] if notes else []
    return "\n\n".join(parts)


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


def _claims(paper: str) -> str:
    """What is to be known about a paper's claims, where they are no epsilons."""
    return str(getattr(module_of(paper), "CLAIMS", ""))


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
    """Put the table into a paper's page, between its marks, and draw the plots that the page shows."""
    page = docs / "papers" / f"{paper}.md"
    _insert(page, PAPERS[paper], paper_section(paper, records))
    text = page.read_text(encoding="utf-8")
    for title, drawn in _plots(rows(paper, records)):
        name = re.sub(r"[^a-z0-9]+", "-", f"{paper} {title}".lower()).strip("-") + ".svg"
        if f"(figures/{name})" in text:
            write_whole(_make_folder(page.parent / "figures") / name, drawn.encode())
    return page


def _insert(page: Path, title: str, section: str) -> None:
    """Put a section between the marks of a page; prose around them stays."""
    text = page.read_text(encoding="utf-8") if page.exists() else f"# {title}\n\n{BEGIN}\n{END}\n"
    if BEGIN not in text or END not in text:
        text = text.rstrip() + f"\n\n## Figures\n\n{BEGIN}\n{END}\n"
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    _make_folder(page.parent)
    write_whole(page, f"{before}{BEGIN}\n\n{section}\n\n{END}{after}".encode())


OVERVIEW: tuple[Column, ...] = (
    ("paper", lambda row: theirs(row.experiment)),
    ("ours", lambda row: ours(row)),
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


def _all_rows(paper: str, records: Records) -> list[Row]:
    """Every experiment and every stated difference, other readings of a figure within its row."""
    found = rows(paper, records)

    def readings(row: Row) -> tuple[Row, ...]:
        return tuple(other for other in found if other.experiment.instead[0] == row.experiment.id)

    return [*(replace(row, readings=readings(row)) for row in found), *gain_rows(paper, records)]


def _stated(found: Iterable[Row]) -> list[Row]:
    """A row for every figure that a paper states or implies, without other readings of it."""
    return [row for row in found if row.experiment.figure is not None and not row.experiment.instead[0]]


def write_overview(records_of: Callable[[str], Records], docs: Path) -> Path:
    """docs/reproduction.md: how many stated figures came out, the headline figures, and a plot of each kind."""
    path = docs / "reproduction.md"
    figures = _make_folder(docs / "papers" / "figures")
    _insert(path, "The papers' figures, and ours", overview_section(records_of))
    headlines = [one for paper in PAPERS for one in _headlines(paper, records_of(paper))]
    for name, drawn in _overview_plots(headlines):
        write_whole(figures / name, drawn.encode())
    return path


def overview_section(records_of: Callable[[str], Records]) -> str:
    """The generated part of the overview."""
    stated = {paper: _stated(_all_rows(paper, records_of(paper))) for paper in PAPERS}
    tallies = [[f"[{title}](papers/{paper}.md)", *tally(stated[paper])] for paper, title in PAPERS.items()]
    tallies.append(["all five", *tally([row for own in stated.values() for row in own])])
    lines = [
        [f"{headline.name}", *(_cell(of(headline.row)) for _, of in OVERVIEW)]
        for paper in PAPERS
        for headline in _headlines(paper, records_of(paper))
    ]
    claims = [f"{_short(paper)}: {words}" for paper in PAPERS if (words := _claims(paper))]
    return "\n\n".join(
        [
            markdown(["paper", "stated figures", *_VERDICTS], tallies),
            markdown(["headline figure", *(title for title, _ in OVERVIEW)], lines),
            *claims,
        ]
    )


@dataclass(frozen=True)
class Headline:
    """A row of the overview, with a name short enough for a plot."""

    name: str
    row: Row


def _headlines(paper: str, records: Records) -> list[Headline]:
    """Those that the paper's module names, else all that the paper states."""
    names: Mapping[str, str] = getattr(module_of(paper), "IN_OVERVIEW", {})
    found = _all_rows(paper, records)
    if not names:
        return [Headline(f"{_short(paper)}, {row.experiment.what}", row) for row in _stated(found)]
    last = {row.experiment.id: row for row in found if row.experiment.at is None}
    return [Headline(f"{_short(paper)}, {words}", last[name]) for name, words in names.items()]


def _short(paper: str) -> str:
    return PAPERS[paper].partition(" (")[0]


def _overview_plots(headlines: Sequence[Headline]) -> Iterator[tuple[str, str]]:
    """Accuracies beside the papers', and proven epsilons beside claimed ones."""
    accuracies = [
        Pair(one.name, one.row.experiment.figure, one.row.ours, one.row.spread or 0.0)
        for one in headlines
        if one.row.ours is not None and one.row.experiment.figure is not None and not one.row.points
    ]
    if accuracies:
        marks = ("stated in the paper", "ours, with the standard deviation over seeds")
        yield "accuracies.svg", pairs("Accuracy, %", accuracies, marks)
    epsilons = []
    for one in headlines:
        stated = _headline(worst(view for record in one.row.records for view in record.privacy))
        if stated is not None and stated.claimed is not None:
            proven = math.inf if isinstance(stated.proven, str) else stated.proven
            epsilons.append(Pair(one.name, stated.claimed, proven))
    if epsilons:
        marks = ("claimed in the paper", "proven for the same run")
        yield "epsilons.svg", pairs("Epsilon (each step to the right is ten times more)", epsilons, marks, powers=True)


_VERDICTS: tuple[Verdict, ...] = ("reproduced", "undecided", "higher here", "lower here", "not run")


def tally(found: Sequence[Row]) -> list[str]:
    """How many figures are stated, and how many had which verdict; rows with a derived figure are not counted."""
    stated = [row for row in found if not row.experiment.derived]
    by_verdict = ([row for row in stated if row.verdict == verdict] for verdict in _VERDICTS)
    return [str(len(stated)), *map(_counted, by_verdict)]


def _counted(found: Sequence[Row]) -> str:
    kinds = {
        "fitted": sum(row.experiment.fitted for row in found),
        "on one seed": sum(len(row.accuracies) == 1 for row in found),
    }
    details = [f"{number} {kind}" for kind, number in kinds.items() if number]
    return f"{len(found)}" + (f" ({', '.join(details)})" if details else "")


__all__ = [
    "Row",
    "ours",
    "overview_section",
    "paper_section",
    "rows",
    "table",
    "theirs",
    "verdict_words",
    "write_overview",
    "write_paper",
]
