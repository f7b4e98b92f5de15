"""How many pictures can be told from what clients send: shares identified among 1,000, with and without a mechanism.

    python -m benchmarks.leaks --data mnist --network lenet --records 256 --device cuda
    python -m benchmarks.leaks --data cifar-10 --network cnn-wide --epochs 1 5 --how "gradient matching"
    python -m benchmarks.leaks --data mnist --network cnn-mnist --epsilon 1 8 --radius 0.075
    python -m benchmarks.leaks --records 64 --how "gradient matching" "features inverted" --rival breaching

Every client holds one record and takes as many plain steps as there are epochs. The attacker knows the model that was
sent, the learning rate, pictures of others (`--public`) and what the client sent: its weights, or one randomised bit
for each of them (`--epsilon`). A record is identified if of 1,000 candidates, itself and 999 others of the data set, it
is the nearest to the reconstruction. Each line goes to benchmarks/results/leaks.json under its settings; `--show` puts
them, and those of `benchmarks.membership`, into docs/attack-strength.md.

`--rival breaching` gives that library, where it is installed (`benchmarks.rivals.breaching_attack`), the same gradients
of one step, with the labels that our attack infers and as many steps and starts. Its weight of total variation and its
step size are its defaults, then `--rival-smooth` and `--rival-pace` if given ("tuned"). Recorded are 0.02 and 0.3,
about what ours are in its scale. Ours was chosen on records of seed 2: among seven pairs on 16 of CIFAR-10, and five
weights on 16 to 64 of MNIST. The rival was tried there with its defaults, and on CIFAR-10 with these.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.rivals import breaching_attack
from benchmarks.rivals.breaching_attack import Settings
from benchmarks.simulation import Rows, insert
from sordino.audits import closed_form, likeness
from sordino.audits.gradient_matching import SearchEffort
from sordino.audits.reconstruction_game import RecordPool
from sordino.audits.update_attack import MATCHED, WAYS, UpdateAttack
from sordino.learning import datasets, models
from sordino.learning.cohort import ClientData, CohortTrainer, LocalTraining
from sordino.learning.optimizers import SGD
from sordino.mechanisms import Box, TwoPoint
from sordino.privacy.leaks import Share
from sordino.randomness import Keystream

RESULTS = Path(__file__).parent / "results" / "leaks.json"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "attack-strength.md"
RIVAL = breaching_attack.NAME
TUNED = f"{RIVAL}, tuned"
RIVALS = (RIVAL, TUNED)


def trained(model: torch.nn.Module, start: Tensor, x: Tensor, y: Tensor, rate: float, epochs: int, seed: int) -> Tensor:
    """`[K, d]` weights of clients with one record each, after their local epochs."""
    clients = [ClientData(x[k : k + 1], y[k : k + 1]) for k in range(len(x))]
    training = LocalTraining(SGD(rate), epochs=epochs, batch_size=1)
    trainer = CohortTrainer(model, device=x.device)
    found = trainer.train(start.to(x.device), clients, training, Keystream.simulation(seed, list(range(len(x))), 1))
    return found.parameters


def randomised(weights: Tensor, start: Tensor, epsilon: float, radius: float, rounds: int, seed: int) -> Tensor:
    """The mean of what so many reports of the same weights stand for, one random bit each around what was sent."""
    own = TwoPoint(epsilon, Box(start.cpu().numpy(), radius))
    values, total = weights.cpu().numpy(), np.zeros(weights.shape, np.float64)
    for round in range(1, rounds + 1):
        drawn = own.randomize(values, Keystream.simulation(seed, list(range(len(values))), round))
        total += own.estimate(drawn.output)
    return torch.from_numpy((total / rounds).astype(np.float32)).to(weights.device)


def rebuilt(attack: UpdateAttack, updates: Tensor, how: str | None, options: argparse.Namespace) -> Tensor:
    """Pictures of the clients whose updates `[K, d]` are given, by a way of ours or by the rival."""
    if how not in RIVALS:
        return torch.cat([attack.of_one(some, how) for some in torch.split(updates, options.at_once)])
    (rate,) = attack.rates  # the rival is given one gradient
    labels = closed_form.label_of_one(updates, attack.layout)
    return breaching_attack.pictures(
        attack.model, attack.layout, attack.start, attack.pixels, updates / -rate, labels, rival_settings(how, options),
        attack.seed,
    )  # fmt: skip


def rival_settings(how: str, options: argparse.Namespace) -> Settings:
    """What the rival is asked for: as much work as ours."""
    own = Settings(options.steps, options.starts)
    if how == RIVAL:
        return own
    smooth, pace = options.rival_smooth, options.rival_pace
    return replace(own, smooth=own.smooth if smooth is None else smooth, pace=own.pace if pace is None else pace)


def measure(options: argparse.Namespace, epochs: int, epsilon: float | None, how: str | None) -> dict[str, Any]:
    """One line of results."""
    dataset = datasets.load(options.data)
    device, shape = torch.device(options.device), list(dataset.shape)
    model = models.build(options.network, options.seed, input_shape=shape, classes=len(dataset.classes))
    layout = models.parameter_layout(model)
    start = layout.flatten(models.initial_parameters(model, options.seed)).to(device)
    pool = RecordPool(dataset, options.seed)
    targets = pool.draw(options.records)
    own = pool.records(targets)
    x, y = own.x.to(device), own.y.to(device)
    model = model.to(device)
    weights = trained(model, start, x, y, options.rate, epochs, options.seed)
    if epsilon is not None:
        weights = randomised(weights, start, epsilon, options.radius, options.rounds, options.seed)
    pool, public = replace(pool, known=targets).without_public(options.public)
    effort = SearchEffort(steps=options.steps, starts=options.starts)
    if options.smooth is not None:
        effort = replace(effort, smooth=options.smooth, smooth_from_noise=options.smooth)
    attack = UpdateAttack(model, start, pool.pixels.to(device), (options.rate,) * epochs, effort, options.seed)
    attack = replace(attack, public=pool.pictures(public).to(device) if len(public) else None)
    began = time.perf_counter()
    found = rebuilt(attack, weights - start, how, options)
    seconds = time.perf_counter() - began
    originals = pool.pixels.to(device).pictures(x)
    share = Share(int(pool.identified(list(found[:, None]), targets).sum()), len(targets))
    low, high = share.interval()
    way = how or attack.how
    smooth = effort.smooth_from_noise if way == MATCHED else effort.smooth
    search = {"steps": effort.steps, "starts": effort.starts, "smooth": smooth}
    if how in RIVALS:
        search = asdict(rival_settings(how, options))
    return {
        "data": options.data, "network": options.network, "how": way, "epochs": epochs,
        "rate": options.rate, "epsilon": epsilon, "radius": None if epsilon is None else options.radius,
        "rounds": options.rounds, "records": share.trials, "identified": share.hits, "share": share.rate,
        "interval": [low, high], "candidates": pool.candidates, "public": len(public),
        "psnr": likeness.mean_figure(likeness.psnr(found, originals)),
        "ssim": likeness.mean_figure(likeness.ssim(found, originals)), "seconds": round(seconds, 2),
        **search, "seed": options.seed,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu", "torch": torch.__version__,
    }  # fmt: skip


KEY = ("data", "network", "how", "epochs", "rate", "epsilon", "radius", "rounds", "records", "public", "seed")


def keep(line: dict[str, Any]) -> None:
    """Put a line into the file of results, in the place of an earlier one with the same settings."""
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    others = [own for own in before if any(own[name] != line[name] for name in KEY)]
    lines = sorted([*others, line], key=lambda own: [str(own[name]) for name in KEY])
    RESULTS.write_text(json.dumps(lines, indent=1) + "\n")


def table(lines: list[dict[str, Any]]) -> Rows:
    """What is recorded of weights without noise, as the page has it."""
    rows: Rows = [["pictures, network", "sent after", "attack", "identified (95 % interval)"]]
    for line in lines:
        if line["epsilon"] is not None or line["rounds"] > 1:
            continue  # several reports without noise are the same as one
        sent = "1 step" if line["epochs"] == 1 else f"{line['epochs']} epochs"
        how = line["how"] if line["public"] else f"{line['how']}, without public pictures"
        low, high = (f"{100 * end:.1f}" for end in line["interval"])
        share = f"{line['identified']}/{line['records']} ({low} to {high} %)"
        rows.append([f"{line['data']}, {line['network']}", sent, how, share])
    return rows


def members_table(rows: list[dict[str, Any]]) -> Rows:
    """What `benchmarks.membership` recorded."""
    found: Rows = [["attacker sees", "members told at 1 % false alarms", "at 0.1 %", "AUC"]]
    for row in rows:
        seen, figures = row["how"].partition(", ")[2], row["figures"]
        cells = []
        for at in ("1", "0.1"):
            told, alarms = 100 * figures[f"tpr_at_{at}"], 100 * figures[f"false_alarms_at_{at}"]
            cells.append(f"{told:.1f} % (measured false alarms {alarms:.2f} %)")
        found.append([seen, *cells, f"{figures['auc']:.2f}"])
    return found


def show() -> None:
    """Put what is recorded into the page."""
    members = json.loads(RESULTS.with_name("membership.json").read_text(encoding="utf-8"))["rows"]
    lines = json.loads(RESULTS.read_text(encoding="utf-8"))
    insert(PAGE, {"attacks": table(lines), "members": members_table(members)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--network", default="lenet")
    parser.add_argument("--how", nargs="*", choices=WAYS, default=[], help="ways of attack; the usual one by default")
    parser.add_argument("--epochs", nargs="*", type=int, default=[1], help="local epochs over the one record")
    parser.add_argument("--rate", type=float, default=0.03, help="the learning rate of local steps")
    parser.add_argument("--epsilon", nargs="*", type=float, default=[], help="of one bit per weight; none by default")
    parser.add_argument("--radius", type=float, default=0.075, help="of the range around what was sent")
    parser.add_argument("--rounds", type=int, default=1, help="reports of the same weights that are averaged")
    parser.add_argument("--records", type=int, default=32)
    parser.add_argument("--at-once", type=int, default=256, help="records attacked side by side")
    parser.add_argument("--public", type=int, default=1000, help="pictures that the attacker has anyway; 0 for none")
    parser.add_argument("--steps", type=int, default=SearchEffort.steps)
    parser.add_argument("--starts", type=int, default=SearchEffort.starts)
    parser.add_argument("--smooth", type=float, help="the weight of total variation in our searches")
    parser.add_argument("--rival", choices=["breaching"], help="attack by this library too")
    parser.add_argument("--rival-smooth", type=float, help="its weight of total variation, when tuned")
    parser.add_argument("--rival-pace", type=float, help="its step size, when tuned")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    parser.add_argument("--show", action="store_true", help="measure nothing: put what is recorded into the page")
    options = parser.parse_args()
    if options.show:
        show()
        return
    if options.device == "cpu":
        torch.set_num_threads(1)
    ways = options.how or [None]
    if options.rival:
        tuned = options.rival_smooth is not None or options.rival_pace is not None
        ways = [*options.how, RIVAL, *([TUNED] if tuned else [])]
    for epochs in options.epochs:
        for epsilon in [None, *options.epsilon]:
            for how in ways:
                line = measure(options, epochs, epsilon, how)
                print(json.dumps(line), flush=True)
                if not options.dry:
                    keep(line)


if __name__ == "__main__":
    main()
