"""Membership inference with hundreds of shadow models against an overfitted run: how many members an attacker can tell.

    python -m benchmarks.membership --data cifar-10 --device cuda     256 shadows on a GPU; writes the results
    python -m benchmarks.membership --data digits --shadows 64        a small one on a processor; writes nothing

Few clients with few records train a network for many local epochs without any noise (`--noise S`: by DP-SGD with the
noise multiplier S instead), and one client is attacked (sordino.audits.membership). Told members are counted at false
alarm rates of 1 % and 0.1 %; a guess tells as many members as it gives false alarms. Results of CIFAR-10 go to
benchmarks/results/membership.json, one row for every setting.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.console import Console

from sordino.audits.attack_options import AttackOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.membership import ShadowEffort, tell
from sordino.recipe import Recipe
from sordino.runs.simulation import run

RESULTS = Path(__file__).parent / "results" / "membership.json"
MODELS: dict[str, dict[str, Any]] = {
    "cifar-10": {"name": "cnn-wide", "options": {"channels": [32, 64], "hidden": 128}},
    "mnist": {"name": "cnn-mnist"},
    "fashion-mnist": {"name": "cnn-mnist"},
    "digits": {"name": "mlp", "options": {"hidden": [64]}},
}


def recipe_of(given: argparse.Namespace) -> Recipe:
    """Few clients, few records, many epochs."""
    method: dict[str, Any] = {"name": "fedavg", "mechanism": {"name": "none"}}
    training: dict[str, Any] = {"optimizer": {"name": "sgd", "lr": given.lr, "momentum": given.momentum}}
    if given.noise:
        steps = given.epochs * given.records // 50
        method = {
            "name": "silo-dp", "clip": 1.0, "noise_multiplier": given.noise, "sampling_rate": 50 / given.records,
            "steps": steps, "announced_size": given.records,
        }  # fmt: skip
    else:
        training |= {"epochs": given.epochs, "batch_size": 50}
    return Recipe.from_dict(
        {
            "name": f"membership-{given.data}",
            "seed": given.seed,
            "data": {"source": given.data, "train_limit": given.clients * given.records, "test_limit": 1000},
            "split": {"kind": "iid", "clients": given.clients},
            "model": MODELS[given.data],
            "training": training,
            "method": method,
            "rounds": {"count": given.rounds},
        }
    )


def measure(given: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """One row for every adversary."""
    trials = given.targets * given.records
    effort = ShadowEffort(
        shadows=given.shadows, held_out=trials, trials=trials, records=given.records, rounds=given.rounds,
        repeated=1e18, work=1e18,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(recipe_of(given), folder=Path(folder) / "run", device=given.device, workers=1)
        accuracy = outcome.result.accuracy
        console.print(f"accuracy on the test set: {accuracy:.1%}")
        began = time.monotonic()
        leaks = tell(
            FinishedRun.open(Path(folder) / "run"), AttackOptions(device=given.device, seed=given.seed), effort
        )
        seconds = time.monotonic() - began
    machine = torch.cuda.get_device_name() if given.device.startswith("cuda") else platform.processor()
    asked = {name: value for name, value in vars(given).items() if name not in ("device", "write")}
    return [
        {"asked": asked, "variant": leak.variant, "how": leak.how, "accuracy": accuracy, "seconds": seconds,
         "machine": machine, "figures": dict(leak.figures), "bound": leak.bound, "curve": leak.curve}
        for leak in leaks
    ]  # fmt: skip


def write(rows: list[dict[str, Any]]) -> None:
    """Put rows into the file, in the place of earlier ones with the same settings."""
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    kept = [row for row in kept if row["asked"] != rows[0]["asked"]]
    RESULTS.write_text(json.dumps({"rows": kept + rows}, indent=1) + "\n")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Membership inference with many shadow models.")
    parser.add_argument("--data", choices=sorted(MODELS), default="cifar-10")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shadows", type=int, default=256)
    parser.add_argument(
        "--targets", type=int, default=16, help="models that are attacked, and as many to take thresholds from"
    )
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--records", type=int, default=2000, help="of each client, half of them in by a coin")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=15, help="of local training in each round")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--noise", type=float, default=0.0, help="noise multiplier of DP-SGD; 0: plain training")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    console = Console()
    rows = measure(given, console)
    for row in rows:
        found = row["figures"]
        console.print(
            f"{row['variant']:5} {row['how']:32} "
            f"told at 1 %: {found['tpr_at_1']:.2%} (false alarms {found['false_alarms_at_1']:.2%})  "
            f"at 0.1 %: {found['tpr_at_0.1']:.2%} [{found['tpr_at_0.1_low']:.2%}, {found['tpr_at_0.1_high']:.2%}] "
            f"(false alarms {found['false_alarms_at_0.1']:.3%})  AUC {found['auc']:.3f}  {row['seconds']:.0f} s"
        )
    if given.data == "cifar-10":
        write(rows)


if __name__ == "__main__":
    main()
