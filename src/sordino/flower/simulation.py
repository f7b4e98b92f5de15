"""A recipe in Flower's own simulation: virtual nodes, whose clients are computed by Ray, on one machine or a cluster.

It simulates as `sordino run` does, and from the same seed: models are equal to the last bit, and the privacy of what it
computes is that of a simulation, on records that are all here. Each client has a folder with its records, its budget
and its ledger, and goes through the protocol of a real federation; whoever has no Ray cluster is faster with
`sordino run`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.errors import InvalidInput
from sordino.flower import bundles, require
from sordino.storage.files import exclusive_lock, write_whole

require()

from flwr.app import Context, Message  # noqa: E402 (after what says that it is missing)
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

from sordino.client.invitation import check_real  # noqa: E402
from sordino.flower.coordinator import CoordinatorSettings, coordinate, said_aloud  # noqa: E402
from sordino.flower.grid import GridCarrier  # noqa: E402
from sordino.wire.codec import join  # noqa: E402
from sordino.wire.requests import Request, Response  # noqa: E402

if TYPE_CHECKING:
    from sordino.client.client import Client
    from sordino.client.settings import Settings
    from sordino.learning.examples import Examples
    from sordino.recipe import Recipe
    from sordino.runs.federation import Federation
    from sordino.runs.outcome import Outcome

UNLIMITED = 1e300  #: the budget of a client where the recipe sets none
WAIT = 600.0  #: seconds until all virtual nodes must be there: Ray takes its time


def simulate(
    recipe: Recipe, runs: str | Path, *, federation: str = "", cpus: int | None = None, address: str = ""
) -> Outcome:
    """Run a recipe in Flower's simulation; its run is in `runs`/`federation`/run (the recipe's name if left out).

    `cpus` are Ray's, all of them if left out; `address` is that of a Ray cluster ("auto" for the one of this machine),
    whose machines must all see `runs`. Called again after an interruption it goes on.
    """
    require("ray")
    _check(recipe)
    from flwr.simulation import run_simulation

    name = federation or recipe.name
    settings = CoordinatorSettings(name, _names(recipe), wait=WAIT)
    folder = Path(runs).expanduser().absolute() / name
    clients = folder / "clients"
    _make_clients(recipe, clients)
    outcomes: list[Outcome] = []
    run_simulation(
        server_app=_server_app(recipe, settings, folder, outcomes.append),
        client_app=client_app(clients, recipe.seed),
        num_supernodes=recipe.number_of_clients,
        backend_config=_backend(cpus, address),
    )
    if not outcomes:
        raise InvalidInput(f"Flower's simulation ended before the run in {folder} was over: see its log")
    shutil.rmtree(clients)
    return outcomes[0]


def _check(recipe: Recipe) -> None:
    check_real(recipe)
    if recipe.method.channel.posts:
        raise InvalidInput(
            "virtual nodes are registered with no shuffler: run the recipe with sordino run, over real nodes, or with "
            "method.channel.kind = summed"
        )


def _names(recipe: Recipe) -> tuple[str, ...]:
    return tuple(f"client-{number}" for number in range(recipe.number_of_clients))


def _backend(cpus: int | None, address: str) -> dict[str, Any]:
    start: dict[str, object] = {"include_dashboard": False, "log_to_driver": False}
    if cpus is not None:
        start["num_cpus"] = cpus
    if address:
        start = {"address": address, "log_to_driver": False}
    return {"init_args": start, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}


def _server_app(
    recipe: Recipe, settings: CoordinatorSettings, folder: Path, keep: Callable[[Outcome], None]
) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        with said_aloud():
            keep(coordinate(recipe, GridCarrier(grid), settings, folder))

    return app


# --- clients ----------------------------------------------------------------------------------------------------------


def _make_clients(recipe: Recipe, place: Path) -> None:
    """A folder for each client, unless an earlier attempt made them all."""
    from sordino.client.client import Client
    from sordino.runs.federation import wire

    if (place / "complete").exists():
        return
    if place.exists():
        shutil.rmtree(place)
    federation = wire(recipe)
    place.mkdir(parents=True)
    for number, part in enumerate(federation.parts):
        _write_records(place / f"records-{number}.npz", federation.dataset.train.take(part))
        Client.create(place / str(number), _settings(federation, number, place), f"client-{number}").close()
    write_whole(place / "complete", b"")


def _write_records(path: Path, own: Examples) -> None:
    """A client's own records alone: a virtual node reads no others."""
    np.savez(path, x=own.x, y=own.y)


def _settings(federation: Federation, number: int, place: Path) -> Settings:
    from sordino.client.settings import Settings
    from sordino.privacy.guarantee import SERVER
    from sordino.privacy.terms import plain

    normalisation, rule = federation.dataset.normalisation, federation.recipe.clients
    data = {
        "source": str(place / f"records-{number}.npz"),
        **{key: list(value) for key, value in federation.dataset.described.items()},
        "mean": list(normalisation.mean),
        "std": list(normalisation.std),
    }
    if federation.budgets is None:
        budget: dict[str, object] = {"limit": UNLIMITED}
        consents = {"unproven": _kinds(federation), "claimed": False}
    else:
        own = federation.budgets[number]
        if own.adversary != SERVER:
            raise InvalidInput(
                f"clients.budget counts against {own.adversary}, and a client can vouch for nobody but itself against "
                "the server: run it with sordino run, or with clients.budget.adversary = server"
            )
        budget = {"limit": own.limit, "delta": own.delta, "basis": own.basis, "adjacency": plain(own.adjacency)}
        consents = {"unproven": list(rule.allow_unproven), "claimed": own.basis == "claimed"}
    consents["code"] = list(federation.recipe.own_code)
    return Settings.of({"data": data, "budget": budget, "consents": consents})


def _kinds(federation: Federation) -> list[str]:
    """All kinds of release: without a budget a simulation lets everything leave, and its statement says what did."""
    method = federation.method
    plans = [method.preparation("any"), method.plan(method.init(), "any")]
    return sorted({r.what for plan in plans if plan is not None for own in method.releases(plan) for r in own})


def client_app(clients: Path, seed: int) -> ClientApp:
    """Virtual nodes: each opens its client's folder, answers, and closes it again."""
    app = ClientApp()

    @app.query()
    def answer(message: Message, context: Context) -> Message:
        from sordino.client.client import Client
        from sordino.learning.stacked_model import Execution
        from sordino.randomness import Keystream

        number = int(context.node_config["partition-id"])
        requests = [Request.decode(body) for body in bundles.unpack(bundles.bundle_in(message))]
        place = clients / str(number)
        with (
            exclusive_lock(clients / f"{number}.lock", f"client {number}"),
            Client.open(
                place,
                randomness=lambda round: lambda _: Keystream.simulation(seed, [number], round),
                execution=Execution(),
            ) as client,
        ):
            answers = [respond(client, request).encode() for request in requests]
        return Message(bundles.content(bundles.array(join(*answers))), reply_to=message)

    return app


def respond(client: Client, request: Request) -> Response:
    """As the client's service responds, but for the owner, who agrees to everything here."""
    from sordino.client.refusal import Refused
    from sordino.client.socket_service import respond

    try:
        return respond(client, request, client.join)
    except Refused as error:
        return Response(False, reason=str(error)[:1000])


__all__ = ["client_app", "simulate"]
