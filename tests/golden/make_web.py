"""Writes web.json, what a page in TypeScript must reproduce of the Python side, and web_tasks.json, real tasks.

Report bodies and frames bit for bit; networks, gradients and training to 1e-4; accounts to 1e-9. Weights and records
are not stored: both sides draw them from one keystream (`numbers`).

python -m tests.golden.make_web
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray
from torch.func import functional_call, grad, vmap

from sordino import mechanisms as m
from sordino.learning import models
from sordino.learning.cohort import ClientData, LocalTraining
from sordino.learning.linear_head import LinearHead, residuals, split_clip
from sordino.learning.optimizers import SGD, Adam, Optimizer, RMSprop, WeightDecay
from sordino.learning.private_sgd import PrivateTraining, integer_rows
from sordino.mechanisms.noise import discrete_gaussian
from sordino.methods.interface import Bench, Cohort
from sordino.methods.lian_webfed import Counts
from sordino.methods.private_head import PrivateHead
from sordino.methods.upload import Upload
from sordino.privacy import accountant
from sordino.privacy.accountant import Account
from sordino.privacy.guarantee import (
    SERVER,
    Adjacency,
    Budget,
    Claim,
    GaussianLoss,
    Guarantee,
    Infinite,
    Loss,
    PoissonGaussian,
    Pure,
    RandomizedBit,
    Release,
    kind,
)  # fmt: skip
from sordino.privacy.terms import plain
from sordino.randomness import Keystream, Purpose
from sordino.recipe import Recipe
from sordino.runs.federation import wire
from sordino.web.page_task import compile_task, layers_of, mechanism_of
from sordino.wire.messages import Plan, answer_to
from sordino.wire.requests import Request, Response, What
from sordino.wire.signing import Author, SigningKey
from tests.cohorts import train_one

WEB = Path(__file__).with_name("web.json")
TASKS = Path(__file__).with_name("web_tasks.json")
KEY = bytes(range(100, 132))
WEIGHTS, RECORDS, LABELS, VALUES = range(4)  #: tensors of the stream that `numbers` draws from
PIECES = (13, 30)  #: sizes of the two layers whose values are reported


def stream() -> Keystream:
    return Keystream(KEY, [0], 0)


def words(tensor: int, count: int) -> NDArray[np.uint32]:
    return stream().words(np.array([0]), Purpose.INIT, tensor, 0, count)[0]


def numbers(tensor: int, count: int, scale: float) -> NDArray[np.float32]:
    """(word >> 8 - 2^23) * scale * 2^-23, exact in float32 for a scale that is a power of two."""
    steps = (words(tensor, count) >> np.uint32(8)).astype(np.float32) - np.float32(2**23)
    return steps * np.float32(scale * 2**-23)


# --- reports ----------------------------------------------------------------------------------------------------------


def mechanisms() -> dict[str, m.Mechanism]:
    box = m.Box.per_tensor(PIECES, (0.0, 0.05), (0.5, 0.25))
    return {
        "none": m.NoPrivacy(),
        "two-point": m.TwoPoint(1.0, box),
        "two-point, one box": m.TwoPoint(4.0, m.Box(0.0, 0.3)),
        "sign, response": m.RandomizedSign.response(2.0, box),
        "sign, gaussian": m.RandomizedSign.eq7(3.0, 1e-5, m.Box(0.0, 0.5)),
        "laplace": m.Laplace(1.0, box),
        "laplace, records": m.Laplace(3.0, m.Box(0.0, 9.0), records=300),
        "laplace, weak": m.Laplace(0.01, m.Box(0.0, 0.5)),
        "gaussian": m.Gaussian(0.4, m.Box(0.0, 0.5)),
        "gaussian, wide": m.Gaussian(25.0, m.Box(0.0, 0.5)),
    }


def report(name: str, mechanism: m.Mechanism) -> dict[str, Any]:
    values = numbers(VALUES, sum(PIECES), 1.0)
    upload = Upload(lambda _: mechanism, None, values.size, clients=1, what="model weights")
    plan = Plan("golden", 3, {}, {"parameters": values})
    body = upload.send([0], values[None], lambda _: stream(), [1]).bodies[0]
    loss = upload.releases("x", "y")[0][0].guarantees[1].loss  # of one value
    told = without_weights(mechanism_of(mechanism, upload, PIECES))
    return {
        "what": name, "mechanism": told, "plan_hex": plan.encode().hex(),
        "body_hex": body.hex(), "answer_hex": answer_to(plan, body).hex(), "loss": packed(loss),
    }  # fmt: skip


def without_weights(told: dict[str, Any]) -> dict[str, Any]:
    """Pages build tables themselves and compare hashes."""
    digits = [{k: v for k, v in digit.items() if k != "weights"} for digit in told.get("digits", ())]
    rest = {k: v for k, v in told.items() if k != "weights"}
    return rest | ({"digits": digits} if digits else {})


def counts() -> dict[str, Any]:
    counted = Counts(0.5, 1000)
    announced = {str(n): counted.announce(Cohort((0,), (None,), ({},), (n,), ()), lambda _: stream()) for n in (7, 400)}
    one = Upload(lambda _: counted.mechanism, None, 1, clients=1, what="count")
    return {
        "limit": 1000,
        "mechanism": without_weights(mechanism_of(counted.mechanism, one, [1])),
        "announced": announced,
    }


def frames() -> dict[str, Any]:
    plan = Plan(
        "naïve \U0001f512", 7, {}, {"parameters": np.array([1.5, -2.0], np.float32), "a": np.ones((1, 2), np.float32)}
    )
    return {
        "plan_hex": plan.encode().hex(),
        "digest_hex": plan.digest.hex(),
        "request_hex": Request(What.STEP, "report", plan.encode()).encode().hex(),
        "declined_hex": Response(False, answer_to(plan, None), "the budget is spent").encode().hex(),
        "report_hex": Response(True, answer_to(plan, b"\x01\x02\xff")).encode().hex(),
    }


def signing() -> dict[str, Any]:
    """A plan in its envelope, and the coordinator's next key; signatures of Ed25519 are the same every time."""
    plan = Plan("bakery", 7, {}, {"parameters": np.array([1.5, -2.0], np.float32)})
    old, new = (Ed25519PrivateKey.from_private_bytes(seed) for seed in (KEY, bytes(32)))
    key = SigningKey(old, author())
    rotation = key.rotated(new)
    terms = bytes(range(32))
    return {
        "key": key.author.first.hex(), "step": "report", "clients": [0, 2, 9], "terms": terms.hex(),
        "envelope_hex": key.envelope("report", plan, terms, [0, 2, 9], plan.encode()).hex(),
        "rotation": rotation.author.rotations[0].hex(), "next": rotation.author.key.hex(),
        "next_envelope_hex": rotation.envelope("report", plan, terms, [0, 2, 9], plan.encode()).hex(),
    }  # fmt: skip


def author() -> Author:
    """Who signs in all tasks here."""
    return Author(Ed25519PrivateKey.from_private_bytes(KEY).public_key().public_bytes_raw())


# --- networks ---------------------------------------------------------------------------------------------------------

NETWORKS: tuple[tuple[str, tuple[int, ...], int, dict[str, Any]], ...] = (
    ("logistic", (1, 8, 8), 10, {}),
    ("logistic-ovr", (54,), 7, {}),
    ("mlp", (1, 8, 8), 10, {"hidden": (32,)}),
    ("mlp", (54,), 7, {}),
    ("lenet", (1, 28, 28), 10, {}),
    ("cnn-mnist", (1, 28, 28), 10, {}),
    ("cnn-wide", (3, 15, 15), 4, {"channels": (4, 6), "hidden": 12, "padding": 2}),
    ("ldp-fed", (1, 12, 12), 3, {"norm": "none"}),
    ("ldpfl-cifar", (3, 8, 8), 5, {"norm": "none", "dropout": (0.0, 0.0, 0.0)}),
    ("ldpfl-cifar", (3, 8, 8), 5, {"norm": "none", "dropout": (0.0, 0.0, 0.0), "activation": "tanh"}),
)
BATCH = 6


def described(model: torch.nn.Module, name: str) -> dict[str, Any]:
    layout = models.parameter_layout(model)
    first = np.concatenate([[0], np.cumsum(layout.sizes)[:-1]]).astype(int).tolist()
    rows = zip(layout.names, layout.shapes, first, layout.sizes, strict=True)
    parameters = [{"name": n, "shape": list(s), "first": f, "size": z} for n, s, f, z in rows]
    return {"name": name, "layers": layers_of(name, model), "parameters": parameters, "size": layout.size}


def unflattened(model: torch.nn.Module, flat: torch.Tensor) -> dict[str, torch.Tensor]:
    layout = models.parameter_layout(model)
    pieces = flat.split(list(layout.sizes))
    return {n: piece.reshape(s) for n, s, piece in zip(layout.names, layout.shapes, pieces, strict=True)}


def data(shape: Sequence[int], classes: int, records: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = numbers(RECORDS, records * int(np.prod(shape)), 1.0).reshape(records, *shape)
    y = words(LABELS, records).astype(np.int64) % classes
    return torch.from_numpy(x), torch.from_numpy(y)


def some(vector: NDArray[Any] | torch.Tensor) -> dict[str, Any]:
    """About a hundred values of a long vector, and its norm."""
    values = np.asarray(vector, np.float64).reshape(-1)
    every = max(1, values.size // 97)
    return {"every": every, "values": rounded(values[::every]), "norm": float(np.linalg.norm(values))}


def rounded(values: NDArray[Any]) -> list[float]:
    return [float(f"{value:.8g}") for value in values.tolist()]


def network(name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any]) -> dict[str, Any]:
    model = models.build(name, input_shape=shape, classes=classes, **options)
    loss = models.loss_for(name)
    flat = torch.from_numpy(numbers(WEIGHTS, models.parameter_layout(model).size, 0.125))
    x, y = data(shape, classes, BATCH)

    def of(parameters: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss(functional_call(model, unflattened(model, parameters), (x,)), y)

    scores = functional_call(model, unflattened(model, flat), (x,))
    rows = vmap(grad(of), (None, 0, 0))(flat, x[:, None], y[:, None])
    norms = rows.double().norm(dim=1)
    clip = float(f"{norms.median():.3g}")
    return {
        "shape": list(shape), "classes": classes, "model": described(model, name),
        "loss_name": "one-versus-rest" if loss is models.one_versus_rest else "cross-entropy",
        "scores": rounded(scores.detach().double().numpy().reshape(-1)), "loss": float(of(flat, x, y)),
        "gradient": some(grad(of)(flat, x, y)), "norms": rounded(norms.numpy()), "clip": clip,
        "clipped": some(integer_rows(rows, clip, 2**20)[0].sum(0) * (clip / 2**20)),
    }  # fmt: skip


# --- training ---------------------------------------------------------------------------------------------------------

SMALL = (1, 6, 6)
PEOPLE = 23


def optimisers() -> dict[str, tuple[Optimizer, dict[str, Any]]]:
    rest = {"weight_decay": 0.0, "decayed": [], "decay": 0.0}
    momentum = {"momentum": 0.9, "nesterov": True}
    return {
        "sgd": (SGD(0.1), {"name": "sgd", "lr": 0.1, "momentum": 0.0, "nesterov": False, **rest}),
        "sgd, momentum and decay": (
            SGD(0.05, WeightDecay(0.01, ("*.weight",)), 0.1, 0.9, True),
            {"name": "sgd", "lr": 0.05, **momentum, "weight_decay": 0.01, "decayed": ["*.weight"], "decay": 0.1},
        ),
        "adam": (Adam(0.01), {"name": "adam", "lr": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, **rest}),
        "rmsprop": (
            RMSprop(0.01, momentum=0.5, rho=0.9, epsilon=1e-7),
            {"name": "rmsprop", "lr": 0.01, "rho": 0.9, "epsilon": 1e-7, "momentum": 0.5, **rest},
        ),
    }


def trainings() -> list[dict[str, Any]]:
    model = models.build("mlp", input_shape=SMALL, classes=4, hidden=(8,))
    rows = []
    for name, (optimiser, told) in optimisers().items():
        plain_training = LocalTraining(optimiser, epochs=2, batch_size=5)
        steps = LocalTraining(optimiser, steps=7, batch_size=None)
        dropping = LocalTraining(optimiser, epochs=1, batch_size=10, drop_last=True, shuffle=False)
        rest = {"kind": "plain", "optimiser": told, "records": None, "shuffle": True, "drop_last": False}
        by_epochs = rest | {"epochs": 2, "steps": None, "batch": 5}
        by_steps = rest | {"epochs": None, "steps": 7, "batch": 0}
        in_order = rest | {"epochs": 1, "steps": None, "batch": 10, "shuffle": False, "drop_last": True}
        rows += [
            trained(f"{name}: epochs", model, plain_training, by_epochs, 3),
            trained(f"{name}: steps", model, steps, by_steps, 1),
            trained(f"{name}: dropping", model, dropping, in_order, 2),
        ]
    optimiser, told = optimisers()["sgd, momentum and decay"]
    private = PrivateTraining(optimiser, clip=0.7, noise_multiplier=0.8, sampling_rate=0.4, expected_batch=9.0, steps=4)
    rows.append(
        trained("private", model, private, {
            "kind": "private", "optimiser": told, "clip": 0.7, "noise": 0.8, "rate": 0.4, "threshold": int(0.4 * 2**32),
            "expected_batch": 9.0, "steps": 4, "resolution": 20,
        }, 2)
    )  # fmt: skip
    return rows


def trained(what: str, model: torch.nn.Module, training: Any, told: dict[str, Any], round: int) -> dict[str, Any]:
    flat = torch.from_numpy(numbers(WEIGHTS, models.parameter_layout(model).size, 0.125))
    x, y = data(SMALL, 4, PEOPLE)
    steps = training.steps if isinstance(training, PrivateTraining) else training.total_steps(PEOPLE)
    first = (round - 1) * steps if training.optimizer.decay else 0
    result = train_one(model, flat, ClientData(x, y), training, stream(), first_step=first)
    return {
        "what": what,
        "training": told,
        "round": round,
        "parameters": rounded(result.parameters[0].double().numpy()),
    }


def training() -> dict[str, Any]:
    model = models.build("mlp", input_shape=SMALL, classes=4, hidden=(8,))
    return {
        "shape": list(SMALL),
        "classes": 4,
        "records": PEOPLE,
        "model": described(model, "mlp"),
        "cases": trainings(),
    }


# --- whole numbers ----------------------------------------------------------------------------------------------------


def whole_noise() -> list[dict[str, Any]]:
    """Discrete Gaussian noise: the hash of a table's weights, its slack, and draws."""
    rows = []
    for bits in (4, 9, 12, 20, 24):
        noise = discrete_gaussian(bits)
        slack = noise.slack()
        weights = b"".join(weight.to_bytes(8, "little") for weight in noise.table.weights)
        drawn = noise.draw(stream().words(np.array([0]), Purpose.NOISE, 0, 0, 8 * noise.words_per_value))[0]
        rows.append({
            "bits": bits, "levels": noise.levels, "digit": noise.digit, "offset": noise.offset,
            "sha256": hashlib.sha256(weights).hexdigest(), "sigma": slack.sigma, "eta": slack.eta, "tau": slack.tau,
            "draws": drawn.tolist(),
        })  # fmt: skip
    return rows


def whole_sums() -> dict[str, Any]:
    """Each record's part of a linear model's sum, as its two factors, and the sum; also under hostile weights."""
    x, y = data((20,), 6, 11)
    x, y = torch.cat([x, 1e-4 * x[:1], 300 * x[1:2], torch.zeros(1, 20)]), torch.cat([y, y[:3]])
    head = LinearHead(20, 6, True)
    own = torch.from_numpy(numbers(WEIGHTS, head.size, 0.125))
    cases = []
    for name, parameters in {"ordinary": own, "nearly equal": 1 + 1e-7 * own, "huge": 1e8 * own}.items():
        for clip, steps in ((0.7, 806_596), (3.0, 2**20), (1.0, 512), (0.5, 8)):
            records, (features, limit) = head.rounded(x, steps), split_clip(steps)
            weights = head.weights(parameters)
            found, shortened, _ = residuals(records, records.whole.double() @ weights.whole.T, y, clip, limit)
            cases.append({
                "what": name, "parameters": parameters.double().tolist(), "clip": clip, "steps": steps,
                "features": features, "residuals": limit, "records": records.whole.long().tolist(),
                "parts": found.long().tolist(), "clipped": int(shortened.sum()),
                "sum": head.sums(weights, records, y, clip, split_clip(steps)[1]).sums.tolist(),
            })  # fmt: skip
    return {"x": x.double().tolist(), "y": y.tolist(), "classes": 6, "cases": cases}


def noisy_sums() -> dict[str, Any]:
    """Whole reports of private-head, of second moments and of a gradient, for two strengths, and of nobody."""
    name, settings = FEDERATIONS[-1]
    recipe = Recipe.load(name, settings)
    method = wire(recipe).method
    assert isinstance(method, PrivateHead)
    x, y = data((1, 8, 8), 10, 9)
    maps, size = method.form.maps, method.head.size
    arrays = {
        "parameters": numbers(WEIGHTS, size, 1.0),
        "left": np.rint(numbers(VALUES, maps * maps, 2.0**16)).reshape(maps, maps),
        "centre": np.rint(numbers(LABELS, maps, 2.0**20)),
    }
    rows = []
    for plan in (Plan(recipe.name, 1), Plan(recipe.name, 2, {}, arrays)):
        for client, records in ((0, ClientData(x, y)), (1, ClientData(x, y)), (0, None)):
            cohort = Cohort((client,), (records,), ({},), (9,))
            body = method.report(plan, cohort, lambda _: stream(), Bench()).bodies[0]
            digest = hashlib.sha256(body).hexdigest()
            rows.append({
                "round": plan.round, "client": client, "records": 0 if records is None else 9, "plan_hex":
                plan.encode().hex(), "bytes": len(body), "first_hex": body[:64].hex(), "sha256": digest,
            })  # fmt: skip
    return {"federation": recipe.name, "records": 9, "rows": rows}


# --- accounts ---------------------------------------------------------------------------------------------------------


def packed(loss: Loss) -> dict[str, Any]:
    return {"type": kind(loss), **vars(loss)}


def renyi() -> list[dict[str, Any]]:
    rows = []
    for q, sigma in ((0.2, 1.5), (0.01, 1.0), (0.05, 0.6), (0.5, 4.0), (0.001, 10.0), (0.9, 0.8)):
        for order in (2, 2.6, 3.7, 9.4, 32, 256):
            for adjacency in (Adjacency.RECORD_ADD_REMOVE, Adjacency.RECORD_REPLACE):
                value = accountant._sampled_renyi(q, sigma, order, adjacency)
                rows.append(
                    {"q": q, "sigma": sigma, "order": order, "adjacency": plain(adjacency), "divergence": value}
                )
    return rows


def accounts() -> list[dict[str, Any]]:
    bits = RandomizedBit(m.TwoPoint(0.001).t_min.item(), 500)
    claim, whole = Claim(3.0, 0.0, "-"), Claim(2.0, 1e-5, "-", covers="schedule")
    nothing, sampled = Infinite("-"), PoissonGaussian(0.2, 1.7, 5)
    added, exchanged, client = Adjacency.RECORD_ADD_REMOVE, Adjacency.RECORD_REPLACE, Adjacency.CLIENT
    both = [(client, Pure(2.5, 3)), (Adjacency.COORDINATE, Pure(2.5))]
    given: list[tuple[Budget, list[tuple[Adjacency, Loss]], Claim | None]] = [
        (Budget(4.0, 1e-4, "proven", added), [(added, sampled)], None),
        (Budget(4.0, 1e-4, "proven", exchanged), [(exchanged, sampled)], None),
        (Budget(3.0, 1e-5, "proven", added), [(added, PoissonGaussian(1.0, 5.0, 2))], None),
        (Budget(4.0, 1e-4, "proven", added), [(added, PoissonGaussian(0.2, 1.7, 5, 0.05, 3e-6))], None),
        (Budget(3.0, 1e-5, "proven", added), [(added, PoissonGaussian(1.0, 5.0, 2, 1e-3, 2e-7))], None),
        (Budget(3.0, 1e-5, "proven", client), [(added, sampled)], None),
        (Budget(1.0, 0.0, "proven", client), [(client, Pure(0.1))], None),
        (Budget(8.0, 1e-5, "proven", client), [(client, Pure(0.01, 30))], None),
        (Budget(8.0, 1e-5, "proven", exchanged), [(client, bits)], None),
        (Budget(2.0, 1e-5, "proven", client), [(client, GaussianLoss(0.05, 1e-9, 1e-12))], None),
        (Budget(50.0, 1e-5, "proven", client), [*both], None),
        (Budget(30.0, 1e-5, "claimed", client), [(client, nothing)], claim),
        (Budget(30.0, 1e-5, "claimed", client), [(client, nothing)], whole),
        (Budget(30.0, 1e-5, "proven", client), [(client, nothing)], whole),
    ]
    return [account(*row) for row in given]


def account(budget: Budget, losses: Sequence[tuple[Adjacency, Loss]], claimed: Claim | None) -> dict[str, Any]:
    found = tuple(Guarantee(SERVER, adjacency, loss, "-") for adjacency, loss in losses)
    told = None if claimed is None else vars(claimed) | {"adjacency": plain(claimed.adjacency), "adversary": "server"}
    return {
        "budget": {
            "limit": budget.limit, "delta": budget.delta, "basis": budget.basis,
            "adjacency": plain(budget.adjacency), "adversary": "server",
        },
        "guarantees": [
            {"adversary": "server", "adjacency": plain(adjacency), "basis": "-", "loss": packed(loss)}
            for adjacency, loss in losses
        ],
        "claimed": told,
        "spent": spent(budget, Release("-", "-", "-", found, claimed)),
    }  # fmt: skip


def spent(budget: Budget, release: Release) -> list[float | str]:
    account, totals = Account.opening(budget), []
    for number in range(12):
        account = account.after(replace(release, id=str(number)))
        totals.append(account.spent if np.isfinite(account.spent) else "infinite")
    return totals


def web() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "key_hex": KEY.hex(),
        "pieces": list(PIECES),
        "reports": [report(name, mechanism) for name, mechanism in mechanisms().items()],
        "counts": counts(),
        "frames": frames(),
        "signing": signing(),
        "batch": BATCH,
        "networks": [network(*given) for given in NETWORKS],
        "training": training(),
        "whole_noise": whole_noise(),
        "whole_sums": whole_sums(),
        "noisy_sums": noisy_sums(),
        "renyi": renyi(),
        "accounts": accounts(),
    }


# --- tasks ------------------------------------------------------------------------------------------------------------

SUMS = "method.announced_size=479", "rounds.count=4"
FEDERATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("webfed-digits", ()),
    ("two-point-digits", ()),
    ("personalized-digits", ()),
    ("fedavg-digits", ()),
    (
        "webfed-mnist",
        (
            "name=webfed-laplace", "data.source=digits", "data.train_limit=0", "model.name=logistic", "rounds.count=3",
            "method.range.radius=2.0", "method.mechanism.records=50", "method.aggregation.kind=noisy-samples",
            "method.aggregation.epsilon=0.5", "method.aggregation.limit=1000",
        ),
    ),
    ("proven-digits", (*SUMS, 'clients.budget={ limit = 1.0, delta = 1e-5, adjacency = "record-add-remove" }')),
    ("proven-digits", (*SUMS, "name=proven-personal", "clients.epsilon=[1.0, 0.5, 1.0]")),
)  # fmt: skip


def tasks() -> list[dict[str, Any]]:
    """Tasks as `sordino serve` hands them out, without the weights of tables, which pages build themselves."""
    found = []
    for name, settings in FEDERATIONS:
        recipe = Recipe.load(name, settings)
        found.append(stripped(compile_task(wire(recipe), recipe.name, author()).content))
    return found


def stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: stripped(inner) for key, inner in value.items() if key != "weights"}
    return [stripped(inner) for inner in value] if isinstance(value, list) else value


if __name__ == "__main__":
    TASKS.write_text(json.dumps(tasks(), separators=(",", ":")) + "\n")
    WEB.write_text(json.dumps(web(), indent=None, separators=(",", ":")) + "\n")
