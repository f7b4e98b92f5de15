"""What a dense layer's update says about its input, without any search.

A record x changes row i of a layer with bias by -lr delta_i x, and the bias by -lr delta_i: one divided by the other is
x (Phong et al., "Privacy-preserving deep learning via additively homomorphic encryption", 2018, section III; Geiping et
al. 2020, proposition 3.1). Of a batch, a row gives the mean of the records that activate it, weighted by delta.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino.learning.models import Network, ParameterLayout


@dataclass(frozen=True)
class DenseLayer:
    """The first dense layer with a bias, and the layers before it."""

    name: str
    before: Network  #: records `[B, ...]` -> inputs of the layer `[B, r]`; shares the model's parameters
    takes_records: bool  #: whether its inputs are the records themselves

    def gradients(self, updates: Tensor, layout: ParameterLayout) -> tuple[Tensor, Tensor]:
        """What updates `[K, d]` say of weight `[K, h, r]` and bias `[K, h]`."""
        named = layout.unflatten(updates)
        return named[f"{self.name}.weight"], named[f"{self.name}.bias"]


def first_dense(model: nn.Module) -> DenseLayer | None:
    """The first dense layer of a network of layers in a row; None where there is none with a bias."""
    if not isinstance(model, Network):
        return None
    layers = list(model.named_children())
    for place, (name, layer) in enumerate(layers):
        if isinstance(layer, nn.Linear):
            if layer.bias is None:
                return None
            before = Network()
            for own, part in layers[:place]:
                before.add_module(own, part)
            return DenseLayer(name, before, all(isinstance(part, nn.Flatten) for _, part in layers[:place]))
    return None


def input_of_one(weight: Tensor, bias: Tensor) -> Tensor:
    """The input `[K, r]` of the layer, where each update `[K, h, r]`, `[K, h]` is made by one record.

    The update is a column times (x, 1): x is read off the direction that fits all rows best, which is exact without
    noise and averages noise over rows.
    """
    whole = torch.cat([weight, bias.unsqueeze(-1)], dim=-1).double()
    grams = whole @ whole.transpose(-1, -2)  # [K, h, h]: there are fewer rows than columns
    main = torch.linalg.eigh(grams)[1][..., -1:]
    direction = (main.transpose(-1, -2) @ whole).squeeze(-2)
    return _divided(direction[..., :-1], direction[..., -1])


def inputs_of_rows(weight: Tensor, bias: Tensor, most: int) -> Tensor:
    """`[K, P, r]`: what single rows say, of at most `most` rows that differ, the longest first."""
    rows = _divided(weight.double(), bias.double())
    lengths = bias.abs() if most < bias.shape[-1] else torch.zeros_like(bias)
    order = lengths.argsort(dim=-1, descending=True, stable=True)[..., :most]
    return torch.gather(rows, -2, order.unsqueeze(-1).expand(*order.shape, rows.shape[-1]))


def _divided(rows: Tensor, by: Tensor) -> Tensor:
    """Rows divided by numbers, 0 where the number is 0."""
    found = rows / by.unsqueeze(-1)
    return torch.nan_to_num(found, nan=0.0, posinf=0.0, neginf=0.0).float()


def label_of_one(updates: Tensor, layout: ParameterLayout) -> Tensor:
    """`[K]` labels of single records: cross-entropy raises the last bias of the record's own class alone."""
    last = [name for name in layout.names if name.endswith("bias")][-1]
    return layout.unflatten(updates)[last].argmax(-1)


__all__ = ["DenseLayer", "first_dense", "input_of_one", "inputs_of_rows", "label_of_one"]
