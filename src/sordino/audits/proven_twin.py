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
from sordino.learning.examples import Dataset, Examples
from sordino.methods.private_head import PrivateHead
from sordino.parts.shipped_recipes import shipped
from sordino.privacy.guarantee import SERVER, Adjacency
from sordino.privacy.history import RoundReleases
from sordino.privacy.leaks import Leak
from sordino.recipe import Recipe
from sordino.runs.federation import Federation, wire

ROUNDS = 30


def attack(run: FinishedRun, client: int, asked: AttackOptions, shown: Rows) -> tuple[Leak, ...]:
    """What the likeliest-candidate attack makes of the twin's reports; pictures are of the records `shown`.

    Nothing where the run names no epsilon, where its data do not fit a linear head, or where nothing is proven of
    records that code of one's own makes.
    """
    epsilons = run.recipe.epsilons()
    if epsilons is None or isinstance(run.federation.method, PrivateHead):
        return ()
    try:
        twin = proven_twin(run, epsilons[client])
    except InvalidInput:  # such as a task that a linear head does not learn, or an epsilon that whole noise cannot keep
        return ()
    if not proves(twin, client, epsilons[client]):
        return ()
    (leak,) = candidate_likelihood.attack(twin, replace(asked, client=client), ("run",), shown)
    return (replace(leak, variant="proven", figures={**leak.figures, "epsilon": epsilons[client]}),)


def proven_twin(run: FinishedRun, epsilon: float) -> FinishedRun:
    """The twin as if it had been run: its federation, and what its clients would have released."""
    dataset = run.federation.dataset
    tested = dataset if len(dataset.test) else replace(dataset, test=_first(dataset.train))  # nothing is ever tested
    federation = replace(wire(twin_recipe(run.recipe, dataset, epsilon), tested), dataset=dataset)
    return replace(run, federation=federation, rounds=ROUNDS, spent=tuple(_releases(federation)))


def _first(examples: Examples) -> Examples:
    return Examples(examples.x[:1], examples.y[:1])


def proves(twin: FinishedRun, client: int, epsilon: float) -> bool:
    """Whether a twin's statement keeps to the epsilon for a record that is added or removed, against the server."""
    row = twin.stated(twin.group_of(client)).get((SERVER, Adjacency.RECORD_ADD_REMOVE))
    return row is not None and row.proven <= epsilon


def twin_recipe(recipe: Recipe, dataset: Dataset, epsilon: float) -> Recipe:
    """The shipped proven recipe for a known data set, or a linear head over records as they are."""
    same, known = f"proven-{dataset.name}", recipe.data.origin == "known"  # one's own may have the name of a known one
    method: dict[str, object] = {"name": "private-head", "extractor": {"kind": "plain"}}
    data = recipe.to_dict()["data"]
    if known and same in shipped():
        method = Recipe.load(same).to_dict()["method"]
    if not known:  # then silos must announce a size
        method = {**method, "announced_size": max(1, len(dataset.train) // recipe.number_of_clients)}
    if recipe.data.test is None and recipe.data.origin in ("table", "images"):
        data["test"] = (
            0.5  # only beside private evaluation may it be missing; the records are at hand, and none is read
        )
    return Recipe.from_dict({
        "name": f"{recipe.name}-proven",
        "seed": recipe.seed,
        "data": data,
        "split": recipe.to_dict()["split"],
        "model": {"name": "logistic", "per_record": recipe.model.per_record},
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


__all__ = ["attack", "proven_twin", "proves", "twin_recipe"]
