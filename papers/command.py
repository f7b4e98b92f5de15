"""`sordino reproduce`: the papers' experiments, run again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sordino.cli.options import AsJson, Device, WorkerCount, check_folder, check_place
from sordino.cli.printing import left, print_json, print_table, progress_of, stoppable
from sordino.errors import InvalidInput
from sordino.report.words import counted, duration
from sordino.runs.observer import Observer

if TYPE_CHECKING:
    from papers.experiments import Experiment
    from papers.pages import Row
    from papers.records import Records
    from papers.runner import RunProgress, SeedRun
    from sordino.report.records import RoundRecord
    from sordino.runs.coordinator import Attendance
    from sordino.runs.federation import Federation

app = typer.Typer(pretty_exceptions_show_locals=False)

EPSILONS = ("claimed epsilon", "proven epsilon")
SCALED_DOWN = "scaled down, not to be compared with the paper"


@app.command()
def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help="ldp-fl, ldp-fed, ldpfl, personalized or webfed; see --all for all of them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All five papers.")] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A first look, all papers in under three minutes: scaled-down versions of what they state. --only and "
            "--priority choose others.",
        ),
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds for each; as the experiment asks if left out.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only the experiment of this name, or those that begin with it; repeatable."),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(min=1, help="Leave out what is less important: 1 is headline figures only.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where runs and records go.")] = Path("reproduction"),
    docs: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write tables and plots into the pages of this folder, records beside them."
        ),
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PLACE",
            help="Run nothing; take over the records made elsewhere: a file of them, or a folder that was an --out or "
            "a --docs there; repeatable.",
        ),
    ] = None,
    own: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            metavar="RECIPE",
            help="Run your own recipe too, on the same data, split and seeds, beside the paper's; repeatable.",
        ),
    ] = None,
    list_them: Annotated[
        bool, typer.Option("--list", help="List the experiments with rows, time and data, and run nothing.")
    ] = False,
    workers: WorkerCount = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Run a paper's experiments again, the most valuable first, and set them beside its figures.

    What is recorded already is not run again, so the same command goes on after an interruption. Experiments whose data
    are not here are skipped, and it is said which files to put where.
    """
    check_place(workers, device)
    if not list_them:
        check_folder(out)
        if docs is not None:
            check_folder(docs, "--docs")
    from papers.experiments import PAPERS, chosen
    from papers.first_look import first_look
    from papers.own_recipes import beside
    from papers.pages import write_overview, write_paper
    from papers.records import Records

    kept = docs / "papers" / "records" if docs is not None else out / "records"

    def records_of(name: str) -> Records:
        return Records(kept / f"{name}.jsonl")

    if quick and docs is not None:
        raise InvalidInput("pages are made from full runs alone: leave out --quick, or --docs")
    if own and (docs is not None or merge):
        raise InvalidInput("a recipe of your own is on no page and in no other records: leave out --docs and --merge")
    papers = _papers(paper, everything or (paper is None and (list_them or quick)), list(PAPERS))
    todo = _of_priority(chosen(papers, only or []), priority)
    if list_them:
        _list(todo, as_json)
        return
    if quick and not only and priority is None and not merge:
        todo = first_look(todo)
    mine = {name: [one for path in own or () for one in beside(path, found)] for name, found in todo.items()}
    records = {name: records_of(name) for name in papers}
    if merge and seeds is not None:
        raise InvalidInput("--merge takes the records of every seed: leave out --seeds")
    if merge:
        said = _merge(todo, records, merge, quick)
    else:
        from papers.runner import seed_runs

        asked_for = {n: seed_runs([*found, *mine[n]], quick=quick, seeds=seeds) for n, found in todo.items()}
        said = _run(asked_for, records, out, workers, device, quick)
    if docs is not None:
        for name in papers:
            write_paper(name, records[name], docs)
        write_overview(records_of, docs)
    if quick:
        scaled = {name: _recorded([*one, *mine[name]], records[name], quick=True) for name, one in todo.items()}
        _print_quick(scaled, as_json)
    else:
        found = {name: _full_rows(name, one, records[name]) for name, one in todo.items()}
        for name, own_ones in mine.items():
            found[name] += _recorded(own_ones, records[name], quick=False)
        _print(found, as_json)
    for line in said.lines:
        typer.echo(line, err=True)
    pages = "" if docs is None else f" The pages of {docs} are up to date."
    typer.echo(f"Records are in {kept}.{pages}", err=True)
    raise typer.Exit(said.code)


def _papers(paper: str | None, everything: bool, known: list[str]) -> list[str]:
    if everything == (paper is not None):
        raise InvalidInput(f"name one paper ({', '.join(known)}), or --all")
    return known if paper is None else [paper]


def _of_priority(found: Mapping[str, Sequence[Experiment]], priority: int | None) -> dict[str, tuple[Experiment, ...]]:
    """Those of at least this priority, by paper; papers with none are left out."""
    left = {name: tuple(e for e in own if priority is None or e.priority <= priority) for name, own in found.items()}
    if not any(left.values()):
        raise InvalidInput(f"--priority {priority} leaves nothing of what is asked for: raise it, or leave it out")
    return {name: own for name, own in left.items() if own}


def _list(todo: Mapping[str, Sequence[Experiment]], as_json: bool) -> None:
    from papers.catalogue import entries, to_text

    listed = {name: list(entries(name, own)) for name, own in todo.items()}
    if as_json:
        print_json({name: [entry.to_json() for entry in own] for name, own in listed.items()})
        return
    for line in to_text(listed):
        typer.echo(line)


class Summary(NamedTuple):
    """What a person is told at the end, and the exit code."""

    lines: list[str]
    code: int


# --- merging ----------------------------------------------------------------------------------------------------------


def _merge(
    todo: Mapping[str, Sequence[Experiment]], records: Mapping[str, Records], places: Sequence[Path], quick: bool
) -> Summary:
    from papers.merge import find_records, merge

    lines, fit = [], 0
    for place in places:
        sources = {name: source for name in todo if (source := find_records(place, name)) is not None}
        if not sources:
            raise InvalidInput(
                f"no records of {', '.join(todo)} are at {place}: give a file of records, or a folder that was the "
                "--out or the --docs of a reproduction"
            )
        if place.is_file() and len(todo) > 1:
            raise InvalidInput(f"name the paper that the records in {place} are of")
        for name, source in sources.items():
            came = merge(source, records[name], todo[name], quick=quick)
            fit += came.taken + came.known
            others = f", {came.others} of {'full' if quick else 'scaled-down'} runs left out" if came.others else ""
            refused = sum(map(len, came.refused.values()))
            lines.append(
                f"{name}: {counted(came.taken, 'record')} taken from {source.path}, {came.known} recorded before, "
                f"{refused} refused{others}"
            )
            lines += [f"Refused ({why}): {', '.join(which)}" for why, which in came.refused.items()]
    return Summary(lines, 0 if fit else 1)


# --- running ----------------------------------------------------------------------------------------------------------


def _run(
    asked: Mapping[str, Sequence[SeedRun]],
    records: Mapping[str, Records],
    out: Path,
    workers: int | None,
    device: str,
    quick: bool,
) -> Summary:
    from papers.first_look import SECONDS
    from papers.runner import MissingData, Runner

    missing = MissingData()
    display = Display(sum(map(len, asked.values())), SECONDS if quick else None)
    with stoppable(display.how_to_go_on), display:
        ended = {}
        for name, own in asked.items():
            runner = Runner(records[name], out / name, missing, workers, device, display.told, display)
            ended[name] = [runner.reproduce(each) for each in own]
    return _what_happened(ended)


class Display(Observer):
    """What a person sees meanwhile: on a terminal a bar over all of them, elsewhere a line for each and a minute."""

    PLAIN_SECONDS = 60.0

    def __init__(self, total: int, guess: float | None = None) -> None:
        """Show `total` runs; `guess` is the seconds that one takes, if known, until some are done."""
        self._progress = progress_of("experiments", time_left=True)
        self._guess, self._durations = guess, list[float]()  # of the runs that were made
        self._task = self._progress.add_task("", total=total, now="")
        self.total, self.over = total, 0  #: runs that are asked for, and those that are done, recorded or skipped
        self._running = ""
        self._rounds = 0
        self._seconds: list[float] = []  # of the rounds so far
        self._accuracy = ""
        self._began = self._said = 0.0
        self._reasons: set[str] = set()

    def __enter__(self) -> Display:
        self._progress.start()
        if left := self.seconds_left():
            self._line(f"{counted(self.total, 'run')}, about {duration(left)} in all", always=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def how_to_go_on(self) -> str:
        """What to do after an interruption."""
        return f"{self.over} of {self.total} runs are over. The same command goes on from here."

    def seconds_left(self) -> float | None:
        """How long the other runs take if they are like those before them; None as long as nothing is known."""
        known = self._durations or ([self._guess] if self._guess else [])
        return fmean(known) * (self.total - self.over) if known else None

    def told(self, progress: RunProgress) -> None:
        """Show what happens to one of them; a reason to skip is given once."""
        name, now = _name_of(progress.seed_run), time.monotonic()
        if progress.what == "running":
            self._running, self._accuracy = name, ""
            self._began, self._said, self._seconds = now, now, []
            self._progress.update(self._task, now=name)
            self._line(f"{name}: running", always=False)
            return
        if progress.what == "done":
            self._durations.append(now - self._began)
        self._progress.advance(self._task)
        self.over += 1
        left = None if progress.what == "skipped" else self.seconds_left()
        how_far = f" ({self.over} of {self.total}" + (f", about {duration(left)} left)" if left else ")")
        if progress.what == "skipped":
            again = progress.why in self._reasons
            self._reasons.add(progress.why)
            why = "for the same data" if again else progress.why
            self._line(f"{name}: skipped, {why}{how_far}", always=not again)
        elif progress.what == "done":
            self._line(f"{name}: done in {duration(now - self._began)}{self._accuracy}{how_far}", always=False)
        else:
            self._line(f"{name}: {progress.what}{how_far}", always=False)

    def started(self, federation: Federation, preflight: Sequence[str], first: int) -> None:
        """Remember how far the run is to go."""
        self._rounds = federation.recipe.rounds.count

    def round(self, record: RoundRecord, attendance: Attendance) -> None:
        """Show how far the run is, and how long its other rounds take if they are like those before them."""
        if record.accuracy is not None:
            self._accuracy = f", accuracy {record.accuracy:.2%}"
        self._seconds.append(record.seconds)
        left = (self._rounds - record.round) * fmean(self._seconds)
        ahead = f", about {duration(left)} left" if left >= 1 else ""
        now = f"{self._running}: round {record.round} of {self._rounds}{self._accuracy}{ahead}"
        self._progress.update(self._task, now=now)
        if time.monotonic() - self._said >= self.PLAIN_SECONDS:
            self._said = time.monotonic()
            self._line(now, always=False)

    def _line(self, text: str, *, always: bool) -> None:
        """On a terminal the bar says the rest."""
        if always or self._progress.disable:
            self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _name_of(seed_run: SeedRun) -> str:
    return f"{seed_run.experiment.id}, seed {seed_run.seed}"


def _what_happened(ended: Mapping[str, Sequence[RunProgress]]) -> Summary:
    """How many runs of each paper were made, recorded before or skipped, and what the skipped ones want."""
    lines = []
    for name, own in ended.items():
        counts = Counter(progress.what for progress in own)
        lines.append(
            f"{name}: {counts['done']} run now, {counts['recorded before']} recorded before, "
            f"{counts['skipped']} skipped"
        )
    skipped = [(name, progress) for name, own in ended.items() for progress in own if progress.what == "skipped"]
    for why in dict.fromkeys(progress.why for _, progress in skipped):
        papers = Counter(name for name, progress in skipped if progress.why == why)
        lines.append(f"Skipped ({', '.join(f'{count} of {name}' for name, count in papers.items())}): {why}")
    nothing = len(skipped) == sum(map(len, ended.values()))  # of what was asked for could be had
    return Summary(lines, 1 if nothing else 0)


# --- what came of it --------------------------------------------------------------------------------------------------


def _recorded(todo: Sequence[Experiment], records: Records, *, quick: bool) -> list[Row]:
    from papers.pages import Row

    found = []
    for one in todo:
        own = records.of(one.recorded_as, quick=quick, settings=one.settings(quick=quick, seed=1))
        found.append(Row(one, tuple(own)))
    return found


def _print_quick(found: Mapping[str, Sequence[Row]], as_json: bool) -> None:
    """A table for each paper of what ran; its figures are not beside it, as a few rounds are no match for them."""
    from papers.experiments import PAPERS
    from papers.pages import ours, privacy_cells
    from papers.scale import what_ran

    if as_json:
        print_json(
            {
                name: [
                    {
                        "experiment": row.experiment.id,
                        "ran": what_ran(row.experiment, row.records),
                        "rounds": row.rounds,
                        "ours": row.ours,
                        "spread": row.spread,
                        "seeds": len(row.records),
                        "verdict": SCALED_DOWN if row.records else row.verdict,
                    }
                    for row in own
                ]
                for name, own in found.items()
            }
        )
        return
    for name, own in found.items():
        cells = ((r.experiment.id, what_ran(r.experiment, r.records), ours(r), *privacy_cells(r)) for r in own)
        print_table(f"{PAPERS[name]}: {SCALED_DOWN}", left("experiment", "what ran", "accuracy", *EPSILONS), cells)


def _full_rows(paper: str, todo: Sequence[Experiment], records: Records) -> list[Row]:
    """The rows of the experiments that were asked for, and of the differences that are taken from these alone."""
    from papers.experiments import gains
    from papers.pages import gain_rows, rows

    asked = {experiment.id for experiment in todo}
    whole = {gain.id for gain in gains(paper) if gain.experiments <= asked}
    differences = [row for row in gain_rows(paper, records) if row.experiment.id in whole] if whole else []
    return [*(row for row in rows(paper, records) if row.experiment.id in asked), *differences]


def _print(found: Mapping[str, Sequence[Row]], as_json: bool) -> None:
    """A table for each paper; where a row has fewer seeds than the page, the page's figure and spread stand beside."""
    from papers.experiments import PAPERS
    from papers.pages import ours, privacy_cells, theirs, verdict_words

    on_page = {name: _on_page(name, own) for name, own in found.items()}
    if as_json:
        print_json(
            {
                name: [_as_json(row, page) for row, page in zip(own, on_page[name], strict=True)]
                for name, own in found.items()
            }
        )
        return
    for name, own in found.items():
        cells = (
            (
                row.experiment.what, theirs(row.experiment), ours(row), *privacy_cells(row),
                _verdict(row, verdict_words)
                + (f"; the page has {ours(page)} on {len(page.records)} seeds" if page else ""),
            )
            for row, page in zip(own, on_page[name], strict=True)
        )  # fmt: skip
        print_table(PAPERS[name], left("experiment", "paper", "ours", *EPSILONS, "verdict"), cells)


def _on_page(paper: str, own: Sequence[Row]) -> list[Row | None]:
    """Of each row the same one as the repository's page has it, where that is of more seeds."""
    from papers.catalogue import RECORDED
    from papers.pages import gain_rows, rows
    from papers.records import Records

    if all(len(row.records) >= row.seeds_wanted for row in own):
        return [None] * len(own)
    records = Records(RECORDED / f"{paper}.jsonl")
    page = {(row.experiment.id, row.experiment.at): row for row in (*rows(paper, records), *gain_rows(paper, records))}
    beside = (page.get((row.experiment.id, row.experiment.at), row) for row in own)
    return [other if len(other.records) > len(row.records) else None for row, other in zip(own, beside, strict=True)]


def _as_json(row: Row, page: Row | None) -> dict[str, object]:
    return {
        "experiment": row.experiment.id,
        "what": row.experiment.what,
        "where": row.experiment.where,
        "note": row.experiment.note,
        "paper": row.experiment.figure,
        "derived": bool(row.experiment.derived),
        "ours": row.ours,
        "spread": row.spread,
        "seeds": len(row.records),
        "seeds_wanted": row.seeds_wanted,
        "tolerance": row.tolerance,
        "verdict": _verdict(row),
        "page": None if page is None else {"ours": page.ours, "spread": page.spread, "seeds": len(page.records)},
    }


def _verdict(row: Row, words: Callable[[Row], str] = lambda row: row.verdict) -> str:
    from papers.own_recipes import OWN, is_own

    return OWN if is_own(row.experiment) else words(row)


__all__ = ["app"]
