"""An experiment of a paper as data: which recipe, which settings, which figure the paper states and where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import Any

from sordino.errors import InvalidInput
from sordino.recipe import Recipe

#: The name used on the command line, and the paper.
PAPERS = {
    "ldp-fl": "LDP-FL (Sun, Qian, Chen 2021)",
    "ldp-fed": "LDP-Fed (Truex, Liu, Chow, Gursoy, Wei 2020)",
    "ldpfl": "LDPFL (Arachchige, Liu, Camtepe, Nepal, Grobler, Bertok, Khalil 2022)",
    "personalized": "Personalised LDP-FL (Wu, Xu, Zhu 2023)",
    "webfed": "WebFed (Lian, Yang, Zeng, Su 2022)",
}


@dataclass(frozen=True)
class Experiment:
    """One run of a reproduction table, and the row of its last round; `stages` has those of earlier ones."""

    id: str
    what: str  #: the row's title
    recipe: str  #: a shipped recipe
    overrides: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()  #: settings on top of them that make it a matter of seconds
    figure: float | None = None  #: the paper's accuracy in percent; None: not stated
    where: str = ""  #: the place in the paper
    seeds: int = 1
    priority: int = 2  #: 1 for headline figures, which are run first
    group: str = ""  #: experiments of one group make one plot, over `x`
    x: float | None = None
    axis: str = ""  #: what a plot has below: what `x` is, and of an epsilon whether it is claimed, and about what
    note: str = ""
    earlier: tuple[tuple[int, float], ...] = ()  #: figures stated of the same run's earlier rounds: (round, percent)
    at: int | None = None  #: the round that the figure is of; None: the last
    curves: str = ""  #: experiments that share it make one plot, over rounds
    line: str = ""  #: its name there; `what` if left out

    def settings(self, *, quick: bool, seed: int) -> Recipe:
        """The recipe of one run."""
        return Recipe.load(self.recipe, [*self.overrides, *(self.quick if quick else ()), f"seed={seed}"])

    def stages(self) -> tuple[Experiment, ...]:
        """A row for each stated figure: one run, whose recorded curve has them all. The last round's comes first."""
        return (self, *(self._after(round, figure) for round, figure in self.earlier))

    def _after(self, round: int, figure: float) -> Experiment:
        what = f"{self.what}, after round {round}"
        return replace(self, what=what, figure=figure, at=round, earlier=(), group="", x=None, note="")


@dataclass(frozen=True)
class Gain:
    """A stated difference of two experiments' accuracies, in points; over several settings, the mean of theirs."""

    id: str
    what: str
    pairs: tuple[tuple[str, str], ...]  #: (experiment, the one that it is better than)
    figure: float
    where: str = ""


def gains(paper: str) -> tuple[Gain, ...]:
    """The differences that a paper states."""
    return tuple(getattr(module_of(paper), "GAINS", ()))


def experiments(paper: str) -> tuple[Experiment, ...]:
    """A paper's experiments, the most valuable first."""
    found = tuple(_checked(module_of(paper).EXPERIMENTS))
    return tuple(sorted(found, key=lambda experiment: experiment.priority))


def module_of(paper: str) -> ModuleType:
    """The module that describes a paper's experiments."""
    if paper not in PAPERS:
        raise InvalidInput(f"unknown paper {paper!r}; allowed: {', '.join(PAPERS)}")
    return import_module(f"sordino.reproduce.papers.{paper.replace('-', '_')}")


def _checked(given: Iterable[Experiment | dict[str, Any]]) -> Iterable[Experiment]:
    seen: set[str] = set()
    for one in given:
        experiment = one if isinstance(one, Experiment) else Experiment(**one)
        if experiment.id in seen:
            raise InvalidInput(f"two experiments are called {experiment.id!r}")
        seen.add(experiment.id)
        yield experiment


def chosen(all_of_them: Sequence[Experiment], only: Sequence[str]) -> tuple[Experiment, ...]:
    """Those with these names, or whose names begin so; all where none is given."""
    if not only:
        return tuple(all_of_them)
    found = tuple(e for e in all_of_them if any(e.id == name or e.id.startswith(f"{name}-") for name in only))
    if not found:
        known = ", ".join(experiment.id for experiment in all_of_them)
        raise InvalidInput(f"no experiment is called {', '.join(only)}; there are: {known}")
    return found


__all__ = ["PAPERS", "Experiment", "Gain", "chosen", "experiments", "gains", "module_of"]
