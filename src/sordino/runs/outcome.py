"""The outcome of a run: its result, its privacy statement and its model, and the files that hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sordino.errors import InvalidInput
from sordino.methods.blueprint import blueprint_of
from sordino.methods.private_head import PrivateHead
from sordino.privacy import history
from sordino.privacy.history import RoundReleases
from sordino.privacy.statement import Statement
from sordino.recipe import EVERYTHING, Recipe
from sordino.recipe.sources import read_data
from sordino.report.caveats import caveats
from sordino.report.folder import RunFolder
from sordino.report.records import ClientBudget, Result, RoundRecord
from sordino.report.statement import to_json
from sordino.runs.federation import Federation, wire


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a run, its rounds, its statement and its model."""

    result: Result
    rounds: tuple[RoundRecord, ...]
    statement: Statement
    parameters: NDArray[np.float32]
    tensors: Mapping[str, NDArray[np.float32]]
    folder: Path | None = None

    @property
    def accuracy(self) -> float | None:
        """On the test set, after the last round."""
        return self.result.accuracy

    def to_json(self) -> dict[str, object]:
        """The final figures, the statement and the paths written, ready for `json.dumps`."""
        return figures(self.result, self.statement, self.folder)


def figures(result: Result, statement: Statement | None, folder: Path | None) -> dict[str, object]:
    """The final figures of a run, its statement and the paths written, ready for `json.dumps`."""
    files = () if folder is None else sorted(p for p in folder.iterdir() if p.is_file() and p.name[0] != ".")
    names = ("name", "seed", "accuracy", "loss", "rounds", "clients", "parameters", "seconds", "stopped")
    return {
        **{name: getattr(result, name) for name in names},
        "statement": None if statement is None else to_json(statement),
        "folder": None if folder is None else str(folder),
        "files": [str(path) for path in files],
    }


def write_outcome(folder: RunFolder, outcome: Outcome, model: str) -> Outcome:
    """Write the outcome of a run of this model; the page comes last."""
    from sordino.report.page import report_page

    about = {"recipe": outcome.result.name, "model": model, "seed": outcome.result.seed}
    # One text: the file's format keeps several in no fixed order, and the same run gives the same bytes.
    folder.write_model(outcome.tensors, {"sordino": json.dumps(about)})
    folder.write_statement(outcome.statement)
    folder.write_result(outcome.result)
    folder.write_report(report_page(folder))
    return replace(outcome, folder=folder.path)


def load_model(run: str | Path) -> nn.Module:
    """The trained model in a finished run's folder, for evaluation.

    It takes records as it was trained on them: normalised, and with LDPFL the bits of their features. A linear head on
    public features comes with all that makes these of normalised records. The data set must be where the recipe looks
    for it: its shape and classes say how large the model is. So must the file that training started from. A model or a
    data source of somebody's own is imported: open only folders of people whose code you would run.
    """
    folder = RunFolder.open(run)
    tensors, _ = folder.model()
    recipe = Recipe.from_toml(folder.recipe, EVERYTHING)
    model = _model_of(recipe)
    state = {name: torch.from_numpy(array) for name, array in tensors.items()}
    if missing := {name for name, value in model.named_parameters() if value.requires_grad} - state.keys():
        raise InvalidInput(f"{folder.path} holds the model of another recipe: it lacks {', '.join(sorted(missing))}")
    model.load_state_dict(state, strict=False)  # what no client sends keeps the values it starts with
    return model.eval()


def _model_of(recipe: Recipe) -> nn.Module:
    """The model that a run of this recipe hands out, untrained."""
    if isinstance(recipe.method, PrivateHead.Spec):
        method = wire(recipe).method  # how long whole vectors are follows from public sizes
        assert isinstance(method, PrivateHead)
        return method.whole
    dataset = read_data(recipe)
    return blueprint_of(recipe, dataset.shape, len(dataset.classes), (1,))[0].model


def statement_of(federation: Federation, spent: Sequence[RoundReleases], rounds: int, *, simulated: bool) -> Statement:
    """The privacy statement of a run of so many rounds, without any audit; `simulated` where noise follows a seed."""
    title = f"Privacy statement of {federation.recipe.name}"
    found = history.statement(spent, federation.clients, delta=federation.delta, title=title)
    return replace(found, caveats=caveats(federation.recipe, rounds), simulated=simulated)


def client_budgets(
    federation: Federation, spent: Sequence[RoundReleases], spending: Sequence[float] | None
) -> tuple[ClientBudget, ...]:
    """Each client's share in the releases; `spending` is what their ledgers have counted, None where nobody knows."""
    clients, epsilons = federation.clients, federation.recipe.epsilons()
    limits = None if spending is None else federation.budgets  # real owners set their own, and tell nobody
    reports, declined = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
    for one in spent:
        for who in one.clients if one.round else ():  # before the first round nothing is reported
            reports[list(who)] += 1
        declined[list(one.declined)] += 1
    return tuple(
        ClientBudget(
            k,
            epsilon=None if epsilons is None else epsilons[k],
            limit=None if limits is None else limits[k].limit,
            spent=spending[k] if spending else None,
            reports=int(reports[k]),
            declined=int(declined[k]),
        )
        for k in range(clients)
    )


__all__ = ["Outcome", "client_budgets", "figures", "load_model", "statement_of", "write_outcome"]
