"""What whole numbers cost DP-SGD: exact sums beside float ones, and discrete Gaussian noise, on one core in one run.

    python -m benchmarks.private_sums            # all of it; writes the table in docs/performance.md
    python -m benchmarks.private_sums --print    # writes nothing

Machines are noisy: what counts are the ratios, all taken in the same run. Each figure is the best of several passes,
and the passes of all candidates are interleaved. The float rivals compute the same gradients without the grid: a linear
head's by its rank-one form (in float32 and float64), another network's by the same loop and by vmap, sixteen at a time.
The measure of a head is its two matrix products alone, in float32 and in the layout that is fastest. Exact scores take
a product with two digits of every weight, because float32 has 24 bits: these products alone are the second measure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.mechanisms import verdict
from benchmarks.simulation import insert
from sordino.learning import models
from sordino.learning.linear_head import LinearHead, split_clip
from sordino.learning.optimizers import SGD
from sordino.learning.private_sgd import PrivateTraining, Records, integer_sums
from sordino.learning.stacked_model import LOOP, Batch, Execution, StackedModel
from sordino.mechanisms.noise import discrete_gaussian
from sordino.randomness import Keystream

ROOT = Path(__file__).parent
RESULTS = ROOT / "results" / "private-sums.json"
PAGE = ROOT.parent / "docs" / "performance.md"
PASSES = 7
HEAD_PASSES = 25  #: of calls that take milliseconds
WANTED = 0.8  #: of a linear head in float32, and of the matrix products alone
CLIP, STEPS = 1.0, 2**20
CPU = torch.device("cpu")
PRODUCTS = "its two matrix products alone, float32"
DIGIT_PRODUCTS = "its two matrix products alone, with digits of weights"
#: what the page shows: whole numbers beside floats, for a linear head, for a network and for noise
SHOWN = {
    "linear head, 12,000 x 784 (records)": (PRODUCTS, DIGIT_PRODUCTS, "whole", "float32"),
    "linear head, 6,000 x 3,969 (records)": (PRODUCTS, DIGIT_PRODUCTS, "whole", "float32"),
    "cnn-mnist, 21,840 parameters (records)": ("whole, one at a time (a real client)", "floats, one at a time"),
    "noise": ("numpy normal sampler", "discrete Gaussian, sigma 2^20"),
}


def best(calls: dict[str, Callable[[], object]], passes: int = PASSES) -> dict[str, float]:
    """Seconds of each call, at best, all of them in turn."""
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(passes):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            found[name] = min(found[name], time.perf_counter() - began)
    return found


def float_head(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The sum of clipped gradients of a linear softmax head, in the precision of its weights."""
    residual = torch.softmax(x @ weight[:, :-1].T + weight[:, -1], 1) - torch.nn.functional.one_hot(y, len(weight))
    length = residual.norm(dim=1) * torch.sqrt((x * x).sum(1) + 1)
    residual = residual * torch.clamp(CLIP / length, max=1.0)[:, None]
    return torch.cat([(residual.T @ x).reshape(-1), residual.sum(0)])


def head_rates(records: int, features: int, classes: int = 10) -> dict[str, float]:
    """Records per second of a full-batch step; the whole vectors are kept, as a client keeps them."""
    rng = torch.Generator().manual_seed(1)
    x = torch.rand(records, features, generator=rng)
    y = torch.randint(0, classes, (records,), generator=rng)
    weight = 0.1 * torch.randn(classes, features + 1, generator=rng)
    flat = torch.cat([weight[:, :-1].reshape(-1), weight[:, -1]])
    head = LinearHead(features, classes, True)
    kept, wide, double = head.rounded(x, STEPS), x.double(), weight.double()
    plain, residual = weight[:, :-1].contiguous(), torch.randn(classes, records, generator=rng)
    digits = head.weights(flat).digits(kept.longest).digits[:, :-1].contiguous()
    seconds = best({
        "whole": lambda: head.sums(head.weights(flat), kept, y, CLIP, split_clip(STEPS)[1]),
        "rounding records, once": lambda: head.rounded(x, STEPS),
        "float32": lambda: float_head(weight, x, y),
        "float64": lambda: float_head(double, wide, y),
        PRODUCTS: lambda: (plain @ x.T, residual @ x),
        DIGIT_PRODUCTS: lambda: (digits @ x.T, residual @ x),
    }, HEAD_PASSES)  # fmt: skip
    return {name: records / value for name, value in seconds.items()}


def network_rates(name: str, shape: tuple[int, ...], records: int = 64) -> dict[str, float]:
    """Records per second of one step of DP-SGD of a network: as a real client and as a simulation computes it."""
    options = {"norm": "group"} if name == "ldp-fed" else {}
    model = models.build(name, input_shape=shape, classes=10, **options)
    training = PrivateTraining(SGD(0.1), CLIP, 1.0, 1.0, float(records), 1, loss=models.cross_entropy)
    rng = torch.Generator().manual_seed(1)
    x, y = torch.rand(records, *shape, generator=rng), torch.randint(0, 10, (records,), generator=rng)
    own = Records(x, y, np.array([0]), np.array([records]), np.array([0]))
    stream = Keystream.simulation(1, [0], 1)
    alone, together = (StackedModel(model, training.loss, how, CPU) for how in (LOOP, Execution(16)))
    parameters = models.parameter_layout(model).flatten(models.initial_parameters(model, 1))[None]

    def floats(stacked: StackedModel) -> None:
        for first in range(0, records, stacked.execution.width):
            part = slice(first, first + stacked.execution.width)
            rows, _ = stacked.gradients(parameters.expand(len(x[part]), -1), {}, Batch(x[part, None], y[part, None]))
            norms = torch.linalg.vector_norm(rows.double(), dim=1)
            (rows.double() * torch.clamp(CLIP / norms, max=1.0)[:, None]).sum(0)

    for stacked in (alone, together):
        stacked.try_out(x[:2])
    seconds = best({
        "whole, one at a time (a real client)": lambda: integer_sums(alone, training, parameters, own, stream, 0),
        "floats, one at a time": lambda: floats(alone),
        "whole, sixteen at a time (a simulation)": lambda: integer_sums(together, training, parameters, own, stream, 0),
        "floats, sixteen at a time": lambda: floats(together),
    }, 3)  # fmt: skip
    return {name: records / value for name, value in seconds.items()}


def noise_rates(values: int = 2**18) -> dict[str, float]:
    """Values per second, the keystream's words included."""
    rng, rows = np.random.default_rng(1), np.array([0])
    calls: dict[str, Callable[[], object]] = {"numpy normal sampler": lambda: rng.standard_normal(values)}
    for bits in (9, 17, 20, 24):
        noise = discrete_gaussian(bits)

        def draw(noise=noise) -> None:
            stream, tile = Keystream.simulation(1, [0], 1), 2**14
            for first in range(0, values, tile):
                each = noise.words_per_value
                noise.draw(stream.words(rows, 1, 0, first * each, tile * each))

        calls[f"discrete Gaussian, sigma 2^{bits}"] = draw
    return {name: values / seconds for name, seconds in best(calls).items()}


Found = dict[str, dict[str, float]]


def goals(found: Found) -> list[list[str]]:
    """What is wanted, and what was measured."""
    rows = []
    for title in (name for name in found if name.startswith("linear head")):
        for beside in ("float32", PRODUCTS, DIGIT_PRODUCTS):
            ratio = found[title]["whole"] / found[title][beside]
            rows.append([*verdict(f"{title}: whole numbers / {beside}", ratio, WANTED)])
    for name, rate in found["noise"].items():
        if name.startswith("discrete"):
            met = "met" if rate >= 25e6 else "missed"
            rows.append([f"{name}, values/s", f"{rate / 1e6:.0f} M", ">= 25 M", met])
    return [["goal", "measured", "wanted", ""], *rows]


def table(found: Found) -> list[list[str]]:
    """Every rate, and its ratio to the first of its kind; a title stands once."""
    rows = [["what", "how", "per second", "of the first"]]
    for title, rates in found.items():
        first, titles = next(iter(rates.values())), iter([title])
        rows += [[next(titles, " "), name, f"{rate:,.0f}", f"{rate / first:.2f}"] for name, rate in rates.items()]
    return rows


def shown(found: Found) -> Found:
    """The rates that the page has."""
    return {title: {name: found[title][name] for name in names} for title, names in SHOWN.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", help="print the figures and write nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {
        "linear head, 12,000 x 784 (records)": head_rates(12_000, 784),
        "linear head, 6,000 x 3,969 (records)": head_rates(6_000, 3_969),
        "cnn-mnist, 21,840 parameters (records)": network_rates("cnn-mnist", (1, 28, 28)),
        "ldp-fed, 29,034 parameters (records)": network_rates("ldp-fed", (1, 28, 28)),
        "mlp, 199,210 parameters (records)": network_rates("mlp", (1, 28, 28)),
        "noise": noise_rates(),
    }
    console = Console()
    tables = {"private sums": table(found), "private sums goals": goals(found)}
    for rows in tables.values():
        printed = Table(*rows[0])
        for row in rows[1:]:
            printed.add_row(*row)
        console.print(printed)
    if not given.print:
        on = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
        RESULTS.write_text(json.dumps({"machine": on, **found}, indent=1) + "\n")
        insert(PAGE, {"private sums": table(shown(found))})


if __name__ == "__main__":
    main()
