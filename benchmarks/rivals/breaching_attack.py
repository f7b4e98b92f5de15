"""The attack of Geiping et al. ("Inverting gradients", NeurIPS 2020) as `breaching` 0.1.2 has it, for `leaks`.

It is handed what our gradient matching is: the network and weights that were sent, one gradient, its label, the range
of pixels, so many steps and starts. Weight of total variation and step size are its defaults, unless others are given.
Its total variation is made for three channels; for others the same filter is repeated for as many as there are.

`pip install --no-deps breaching==0.1.2 hydra-core omegaconf antlr4-python3-runtime==4.9.3` is enough: torchvision,
which it wants for data sets and networks that are not used here, has a stand-in where it is not installed.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from sordino.audits.gradient_matching import Pixels, each_alone
from sordino.learning.models import ParameterLayout

NAME = "breaching, inverting gradients"


@dataclass(frozen=True)
class Settings:
    """What is asked of `breaching`; the last two are as its own configuration has them."""

    steps: int
    starts: int
    smooth: float = 0.2  #: the weight of total variation
    pace: float = 0.1  #: the step size, in the scale of normalised records

    def overrides(self) -> list[str]:
        """The same as options of its configuration."""
        given = {
            "optim.max_iterations": self.steps,
            "optim.callback": self.steps,
            "restarts.num_trials": self.starts,
            "regularization.total_variation.scale": self.smooth,
            "optim.step_size": self.pace,
        }
        return [f"{name}={value}" for name, value in given.items()]


def library() -> Any:
    """The package `breaching`, with stand-ins for what it imports and does not use here."""
    if "torchvision" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        densenet = _stand_in("torchvision.models.densenet", _DenseLayer=nn.Module)
        _stand_in("torchvision", models=_stand_in("torchvision.models", densenet=densenet),
                  transforms=_stand_in("torchvision.transforms"))  # fmt: skip
    return importlib.import_module("breaching")


def _stand_in(name: str, **contents: object) -> ModuleType:
    own = ModuleType(name)
    vars(own).update(contents)
    sys.modules[name] = own
    return own


def pictures(
    model: nn.Module,
    layout: ParameterLayout,
    start: Tensor,
    pixels: Pixels,
    gradients: Tensor,
    labels: Tensor,
    settings: Settings,
    seed: int,
) -> Tensor:
    """Pictures `[K, *shape]` from gradients `[K, d]` of one record each, one after the other."""
    own, device = library(), start.device
    config = own.get_attack_config("invertinggradients", settings.overrides())
    scale = 1 / (pixels.high - pixels.low).flatten(1)[:, 0]  # normalised values are (picture - shift) / scale
    shift = -pixels.low.flatten(1)[:, 0] * scale
    about = SimpleNamespace(shape=pixels.shape, mean=shift.tolist(), std=scale.tolist(), modality="vision")
    names = [name for name, _ in model.named_parameters()]
    sent = layout.unflatten(start)
    payload = [{"parameters": [sent[name] for name in names], "buffers": [], "metadata": about}]
    setup = {"dtype": torch.float, "device": device}
    attacker = own.attacks.prepare_attack(each_alone(model), nn.CrossEntropyLoss(), config, setup)
    for part in attacker.regularizers:
        part.groups = pixels.shape[0]
        part.weight = part.weight[:2].repeat(pixels.shape[0], 1, 1, 1)
    found = []
    for k, (gradient, label) in enumerate(zip(gradients, labels, strict=True)):
        torch.manual_seed(1000 * seed + k)
        pieces = layout.unflatten(gradient)
        local = {"num_data_points": 1, "labels": label[None], "local_hyperparams": None}
        shared = {"gradients": [pieces[name] for name in names], "buffers": None, "metadata": local}
        rebuilt, _ = attacker.reconstruct(payload, [shared], {})
        found.append(pixels.pictures(rebuilt["data"][0].detach()))
    return torch.stack(found)
