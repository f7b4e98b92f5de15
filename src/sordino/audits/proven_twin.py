"""The proven recipe beside a run: a linear head on the run's own data, proven at the epsilon that the run goes by.

What the run calls epsilon may be claimed, or of one weight. The twin proves that epsilon for a record that is added or
removed, over all rounds, against the server, with no secure sum. Nothing is trained: attacks on it take what clients
would send.
"""

from __future__ import annotations

from dataclasses import replace

from sordino.audits import candidate_likelihood
from sordino.audits.attack_options import AttackOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.reconstruction_game import Rows
from sordino.errors import InvalidInput
from sordino.learning.examples import Dataset
from sordino.methods.private_head import PrivateHead
from sordino.parts.shipped_recipes import shipped
from sordino.privacy.history import RoundReleases
from sordino.privacy.leaks import Leak
from sordino.recipe import Recipe
from sordino.runs.federation import Federation, wire

ROUNDS = 30


def attack(run: FinishedRun, client: int, asked: AttackOptions, shown: Rows) -> tuple[Leak, ...]:
    """What the likeliest-candidate attack makes of the twin's reports; pictures are of the records `shown`.

    Nothing where the run names no epsilon, or where its data do not fit a linear head.
    """
    epsilons = run.recipe.epsilons()
    if epsilons is None or isinstance(run.federation.method, PrivateHead):
        return ()
    try:
        twin = proven_twin(run, epsilons[client])
    except InvalidInput:  # such as a task that a linear head does not learn
        return ()
    (leak,) = candidate_likelihood.attack(twin, replace(asked, client=client), ("run",), shown)
    return (replace(leak, variant="proven", figures={**leak.figures, "epsilon": epsilons[client]}),)


def proven_twin(run: FinishedRun, epsilon: float) -> FinishedRun:
    """The twin as if it had been run: its federation, and what its clients would have released."""
    dataset = run.federation.dataset
    federation = wire(twin_recipe(run.recipe, dataset, epsilon), dataset)
    return replace(run, federation=federation, rounds=ROUNDS, spent=tuple(_releases(federation)))


def twin_recipe(recipe: Recipe, dataset: Dataset, epsilon: float) -> Recipe:
    """The shipped proven recipe for data of this name, or a linear head over records as they are."""
    same = f"proven-{dataset.name}"
    method: dict[str, object] = {"name": "private-head", "extractor": {"kind": "plain"}}
    if same in shipped():
        method = Recipe.load(same).to_dict()["method"]
    if recipe.data.origin != "known":  # then silos must announce a size
        method = {**method, "announced_size": max(1, len(dataset.train) // recipe.number_of_clients)}
    return Recipe.from_dict({
        "name": f"{recipe.name}-proven",
        "seed": recipe.seed,
        "data": recipe.to_dict()["data"],
        "split": recipe.to_dict()["split"],
        "model": {"name": "logistic"},
        "clients": {"epsilon": epsilon},
        "method": {**method, "channel": {"kind": "direct"}},
        "rounds": {"count": ROUNDS},
    })  # fmt: skip


def _releases(federation: Federation) -> list[RoundReleases]:
    """What all clients release in each round: it follows from the plans, of which the numbers do not matter."""
    method, start, everybody = federation.method, federation.method.init(), range(federation.clients)
    found = []
    for round in range(ROUNDS):
        plan = method.plan(replace(start, round=round), federation.recipe.name)
        own = tuple(tuple(releases) for releases in federation.releases(plan))
        who = [[client for client in everybody if method.class_of(client) == number] for number in range(len(own))]
        found.append(RoundReleases(round + 1, own, tuple(who)))
    return found


__all__ = ["attack", "proven_twin", "twin_recipe"]
