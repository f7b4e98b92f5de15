"""A run that is over, found in its folder: what it was, who released what, and what was proven about it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from shlex import quote

import sordino
from sordino.audits import channels
from sordino.audits.inspection import Subject
from sordino.errors import InvalidInput
from sordino.mechanisms.cases import Points, Promise
from sordino.privacy import history
from sordino.privacy.guarantee import Adjacency, Adversary, Release
from sordino.privacy.history import Group, RoundReleases
from sordino.privacy.statement import ClientSet, Counted, Row, Statement
from sordino.randomness import Keystream
from sordino.recipe import EVERYTHING, Recipe
from sordino.recipe.sources import pinned
from sordino.report.folder import RunFolder
from sordino.runs.federation import Federation, wire
from sordino.runs.outcome import statement_of
from sordino.runs.store import check_data
from sordino.storage.files import whole_lines

View = tuple[Adversary, Adjacency]

MOST_VALUES = 2**21  #: values drawn for checks
MOST_ROWS = 6_000  #: clients times rounds
FEWEST_ROWS = 100


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """The run, its federation built anew from the recipe, and its history of releases."""

    folder: RunFolder
    federation: Federation
    rounds: int
    spent: tuple[RoundReleases, ...]
    simulated: bool

    @classmethod
    def open(cls, path: Path | str, data: object = None) -> FinishedRun:
        """The run in a folder; one that is not over, damaged or of another version is refused with the remedy.

        `data` is what the run was handed, where its data was in memory.
        """
        folder = RunFolder.open(path)
        recipe = _recipe(folder)
        result = folder.final_result()
        if result is None:
            raise InvalidInput(
                f"the run in {folder.path} is not over: finish it with 'sordino run --resume {quote(str(folder.path))}'"
            )
        made_by = folder.environment.get("sordino")
        if made_by != sordino.__version__:
            raise InvalidInput(
                f"the run in {folder.path} was made by Sordino {made_by}, and this is {sordino.__version__}: what its "
                f"recipe means may have changed. {_anew(folder)}"
            )
        if result.recipe_fingerprint != recipe.fingerprint:
            raise InvalidInput(f"recipe.toml in {folder.path} was changed after the run. {_anew(folder)}")
        lines = whole_lines(folder.checkpoint / "releases.jsonl")
        spent = tuple(RoundReleases.from_line(line) for line in lines)
        if [one.round for one in spent if one.round] != list(range(1, result.rounds + 1)):
            raise InvalidInput(
                f"{folder.checkpoint / 'releases.jsonl'} is missing or lacks some of the {result.rounds} rounds, so "
                f"that who released what is not known. {_anew(folder)}"
            )
        recipe, dataset = pinned(recipe, data)
        federation, simulated = wire(recipe, dataset), result.label_counts is not None
        if simulated and recipe.data.origin != "known":
            check_data(folder, federation.dataset)
        return cls(folder, federation, result.rounds, spent, simulated=simulated)

    @property
    def recipe(self) -> Recipe:
        """What was run."""
        return self.federation.recipe

    def require_smooth_records(self, remedy: str) -> None:
        """Refuse to make up records of any numbers where the model looks whole numbers up, as it does tokens."""
        import torch

        model = copy.deepcopy(self.federation.model).eval()
        record = torch.zeros(1, *self.federation.record_shape, requires_grad=True)
        with torch.enable_grad():
            scores = model(record).sum()
        if scores.grad_fn is not None and torch.autograd.grad(scores, record, allow_unused=True)[0] is not None:
            return
        raise InvalidInput(
            "the records are whole numbers (tokens) to this run's model, which looks them up: records of other numbers "
            f"cannot be made up for it, nor searched for step by step. {remedy}"
        )

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.federation.clients

    @cached_property
    def groups(self) -> list[Group]:
        """Clients that released the same, equally often."""
        return history.groups(self.spent, self.clients)

    @cached_property
    def statement(self) -> Statement:
        """What the run's statement says without any audit."""
        return statement_of(self.federation, self.spent, self.rounds, simulated=self.simulated)

    def who(self, group: Group) -> ClientSet:
        """How the statement names a group."""
        return ClientSet() if len(self.groups) == 1 else group.who

    def stated(self, group: Group) -> dict[View, Row]:
        """The statement's rows about a group."""
        return self._rows.get(self.who(group), {})

    @cached_property
    def _rows(self) -> dict[ClientSet, dict[View, Row]]:
        found: dict[ClientSet, dict[View, Row]] = {}
        for row in self.statement.rows:
            found.setdefault(row.who, {})[row.adversary, row.adjacency] = row
        return found

    def row(self, client: int, view: View, releases: Sequence[Release]) -> Row:
        """What is proven about these releases of a client, beside what is claimed of its whole run."""
        claim = stated.claimed if (stated := self.stated(self.group_of(client)).get(view)) else None
        delta = max(self.federation.delta, claim.delta if claim else 0.0)
        return replace(figures(once(releases), delta)[view], claimed=claim)

    def group_of(self, client: int | None) -> Group:
        """The group of a client; without one, the group that lost most by what is proven, then by its releases."""
        if client is None:
            return max(self.groups, key=self._lost)
        if not 0 <= client < self.clients:
            raise InvalidInput(f"there is no client {client}: they have the numbers 0 to {self.clients - 1}")
        return next(group for group in self.groups if client in group.clients)

    def _lost(self, group: Group) -> tuple[float, int]:
        proven = [row.proven for row in self.stated(group).values()]
        finite = [epsilon for epsilon in proven if epsilon != float("inf")]
        return max(finite, default=0.0), sum(times for _, times in group.releases)

    def releases(self, client: int, round: int | None = None) -> tuple[int, tuple[Release, ...]]:
        """What a client released in a round: in the first one that it released anything in, if none is named."""
        for spent in self.spent:
            for own, who in zip(spent.releases, spent.reporters, strict=False):  # evaluations come last
                if client in who and own and round in (None, spent.round):
                    return spent.round, own
        when = "in any round" if round is None else f"in round {round}"
        raise InvalidInput(
            f"client {client} released nothing {when} of this run, so there is nothing to audit: name another --client"
            + ("" if round is None else " or --round")
        )


def figures(counted: Counted, delta: float) -> dict[View, Row]:
    """What is proven about these releases, for every onlooker and change."""
    stated = Statement.of_groups([(ClientSet(), counted)], delta=delta)
    return {(row.adversary, row.adjacency): row for row in stated.rows}


def promise(row: Row, mechanism: str, unit: str, attack: str, curve: Points = ()) -> Promise:
    """What a row of a statement says about what an attack sees."""
    basis = "; ".join(row.basis)
    return Promise(
        mechanism, unit, row.adjacency, row.adversary, row.claimed, row.proven, row.delta, basis, attack, curve
    )


def once(releases: Sequence[Release]) -> Counted:
    """Each of these, once."""
    return tuple((release, 1) for release in releases)


def _recipe(folder: RunFolder) -> Recipe:
    try:
        return Recipe.from_toml(folder.recipe, EVERYTHING)
    except InvalidInput as error:
        raise InvalidInput(
            f"the recipe in {folder.path} cannot be read by this version of Sordino ({error}). {_anew(folder)}"
        ) from None


def _anew(folder: RunFolder) -> str:
    return f"Run it anew: sordino run {quote(str(folder.path / 'recipe.toml'))}"


def rows_for(values: int) -> int:
    """How many draws of so many values are made."""
    return max(FEWEST_ROWS, min(MOST_ROWS, MOST_VALUES // values))


def channel_subjects(run: FinishedRun) -> list[Subject]:
    """The channel that the run's reports took."""
    match getattr(getattr(run.recipe.method, "channel", None), "kind", "direct"):
        case "summed":
            return channels.secure_sum()
        case "shuffled" | "shuffler":
            return channels.shuffler()
    return []


def round_randomness(seed: int, round: int, clients: Sequence[int]) -> Keystream:
    """The clients' randomness in a round, addressed as a simulated fleet does."""
    return Keystream.simulation(seed, list(clients), round)
