"""An experiment of a paper as data: which recipe, which settings, which figure the paper states and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType

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

#: The name used on the command line, and the module of its experiments.
MODULES = {
    "ldp-fl": "sun_ldp_fl",
    "ldp-fed": "truex_ldp_fed",
    "ldpfl": "chamikara_ldpfl",
    "personalized": "wu_personalized",
    "webfed": "lian_webfed",
}

SHOWN = 5  #: experiments that are named where an unknown one was asked for


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
    also: tuple[tuple[str, float], ...] = ()  #: further plots that it is a point of: their groups, and its place there
    note: str = ""
    earlier: tuple[tuple[int, float], ...] = ()  #: figures stated of the same run's earlier rounds: (round, percent)
    at: int | None = None  #: the round that the figure is of; None: the last
    fitted: bool = False  #: whether something that the paper leaves open was settled with its figure in view
    instead: tuple[str, str] = ("", "")  #: of another reading: the experiment that it stands beside, and its name
    curves: str = ""  #: experiments that share it make one plot, over rounds
    line: str = ""  #: its name there; `what` if left out
    said: str = ""  #: how the paper puts its figure, where it is no plain number
    about: bool = False  #: whether the paper says "about" (or ~) before its figure
    derived: str = ""  #: how the figure was made, where the paper does not state it: such a row is not counted
    formerly: tuple[str, ...] = ()  #: settings of recorded runs that count no longer as proven what they stated as such
    same_run: str = ""  #: the experiment whose run it is too: the same settings, of which the paper states two figures

    @property
    def stated(self) -> float | None:
        """The figure, if the paper states it itself."""
        return None if self.derived else self.figure

    @property
    def recorded_as(self) -> str:
        """The name that its runs have in the records."""
        return self.same_run or self.id

    def settings(self, *, quick: bool, seed: int) -> Recipe:
        """The recipe of one run."""
        return Recipe.load(self.recipe, [*self.overrides, *(self.quick if quick else ()), f"seed={seed}"])

    def former_settings(self) -> Recipe | None:
        """The recipe of recorded runs whose proven epsilon is only claimed by now."""
        return Recipe.load(self.recipe, [*self.overrides, *self.formerly, "seed=1"]) if self.formerly else None

    def stages(self) -> tuple[Experiment, ...]:
        """A row for each stated figure: one run, whose recorded curve has them all. The last round's comes first."""
        return (self, *(self._after(round, figure) for round, figure in self.earlier))

    def _after(self, round: int, figure: float) -> Experiment:
        what = f"{self.what}, after round {round}"
        return replace(
            self, what=what, figure=figure, said="", at=round, earlier=(), group="", x=None, also=(), note=""
        )


@dataclass(frozen=True)
class Gain:
    """A stated difference of two experiments' accuracies, in points; over several settings, the mean of theirs."""

    id: str
    what: str
    pairs: tuple[tuple[str, str], ...]  #: (experiment, the one that it is better than)
    figure: float
    where: str = ""
    fitted: bool = False  #: as of an experiment
    private: str = ""  #: the experiment whose epsilons it shows; the first of its pairs if left out
    said: str = ""  #: as of an experiment
    about: bool = False  #: as of an experiment
    derived: str = ""  #: as of an experiment
    at: int | None = None  #: as of an experiment
    tested: int | None = None  #: the paper's number of test examples; None: as many as here

    @property
    def experiments(self) -> set[str]:
        """All that it is taken from."""
        return {name for pair in self.pairs for name in pair}


def gains(paper: str) -> tuple[Gain, ...]:
    """The differences that a paper states."""
    return tuple(getattr(module_of(paper), "GAINS", ()))


def experiments(paper: str) -> tuple[Experiment, ...]:
    """A paper's experiments, the most valuable first."""
    found: Sequence[Experiment] = module_of(paper).EXPERIMENTS
    names = Counter(experiment.id for experiment in found)
    if twice := [name for name, count in names.items() if count > 1]:
        raise InvalidInput(f"two experiments are called {twice[0]!r}")
    return tuple(sorted(found, key=lambda experiment: experiment.priority))


def module_of(paper: str) -> ModuleType:
    """The module that describes a paper's experiments."""
    if paper not in PAPERS:
        raise InvalidInput(f"unknown paper {paper!r}; allowed: {', '.join(PAPERS)}")
    return import_module(f"papers.{MODULES[paper]}")


def chosen(papers: Sequence[str], only: Sequence[str]) -> dict[str, tuple[Experiment, ...]]:
    """Of each paper the experiments that these names mean; all where none is given, and a name without any is refused.

    A name means the experiment that is called so, or those that a stated difference of that name is taken from, else
    all whose names begin so.
    """
    offered = {paper: experiments(paper) for paper in papers}
    if not only:
        return offered
    wanted = {each for name in only for each in _matching(name, offered)}
    return {paper: tuple(e for e in own if e.id in wanted) for paper, own in offered.items()}


def _matching(name: str, offered: Mapping[str, Sequence[Experiment]]) -> list[str]:
    known = [experiment.id for own in offered.values() for experiment in own]
    differences = {gain.id: sorted(gain.experiments) for paper in offered for gain in gains(paper)}
    if name in known:
        return [name]
    found = differences.get(name) or [each for each in known if each.startswith(f"{name}-")]
    if not found:
        near = get_close_matches(name, known, SHOWN, cutoff=0.4) or known[:SHOWN]
        raise InvalidInput(
            f"no experiment of {', '.join(offered)} is called {name!r}; there are: {', '.join(near)}"
            + (f" and {len(known) - len(near)} others, which --list has" if len(known) > len(near) else "")
        )
    return found


__all__ = ["PAPERS", "Experiment", "Gain", "chosen", "experiments", "gains", "module_of"]
