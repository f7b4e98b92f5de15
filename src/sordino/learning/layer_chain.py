"""A network of known layers in a row, computed for K clients at once, forwards and backwards, on a processor.

`vmap` and autograd compute any model, but for a small one they take longer than its arithmetic, and they lay gradients
out anew. Here every layer has its own two passes for all clients. Images lie as `[K, C, H, W, B]`, so that copies and
comparisons run over long stretches of memory, vectors as `[K, B, F]`. Gradients are written where the flat vector has
them. No row of any product or sum sees another client: bits do not depend on neighbours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.learning.convolution import BATCH_LAST, BATCH_SECOND, Convolution, pool, pool_gradient
from sordino.learning.models import MaskedDropout, Network, computes_by_class

aten = torch.ops.aten
Tensors = Mapping[str, Tensor]  #: `[K, ...]` by the model's names
Slope = Callable[[Tensor], tuple[Tensor, Tensor]]  #: scores `[K, B, classes]` to their gradient and losses `[K]`


class StackedLayer(ABC):
    """One layer's two passes; between them it keeps what the second one needs."""

    @abstractmethod
    def forward(self, x: Tensor, tensors: Tensors) -> Tensor:
        """The layer's output; `x` stays as it is."""

    @abstractmethod
    def backward(self, gradient: Tensor, tensors: Tensors, found: Tensors, further: bool) -> Tensor:
        """The gradient of the layer's input, if anyone `further` down wants it; those of its tensors go to `found`."""


class _Dense(StackedLayer):
    def __init__(self, name: str, layer: nn.Linear) -> None:
        self._weight, self._bias = f"{name}.weight", f"{name}.bias" if layer.bias is not None else None

    def forward(self, x: Tensor, tensors: Tensors) -> Tensor:
        self._x = x
        y = torch.bmm(x, tensors[self._weight].transpose(1, 2))
        return y if self._bias is None else y.add_(tensors[self._bias].unsqueeze(1))

    def backward(self, gradient: Tensor, tensors: Tensors, found: Tensors, further: bool) -> Tensor:
        torch.bmm(gradient.transpose(1, 2), self._x, out=found[self._weight])
        if self._bias is not None:
            torch.sum(gradient, 1, out=found[self._bias])
        return torch.bmm(gradient, tensors[self._weight]) if further else gradient


class _Conv(StackedLayer):
    def __init__(self, name: str, layer: nn.Conv2d) -> None:
        self._weight, self._bias = f"{name}.weight", f"{name}.bias" if layer.bias is not None else None
        self._convolution = Convolution(layer.stride, layer.padding)  # type: ignore[arg-type]

    def forward(self, x: Tensor, tensors: Tensors) -> Tensor:
        self._width = x.shape[3]
        y, self._columns = self._convolution.forward(x, tensors[self._weight])
        return y if self._bias is None else y.add_(tensors[self._bias][:, :, None, None, None])

    def backward(self, gradient: Tensor, tensors: Tensors, found: Tensors, further: bool) -> Tensor:
        columns, weight = self._columns, tensors[self._weight]
        found[self._weight].copy_(self._convolution.weight_gradient(gradient, columns, weight.shape))
        if self._bias is not None:
            torch.sum(gradient.flatten(2), 2, out=found[self._bias])
        return self._convolution.input_gradient(gradient, columns, weight, self._width) if further else gradient


class _Pooling(StackedLayer):
    def forward(self, x: Tensor, tensors: Tensors) -> Tensor:
        self._shape = x.shape
        y, self._at_left, self._at_upper = pool(x)
        return y

    def backward(self, gradient: Tensor, tensors: Tensors, found: Tensors, further: bool) -> Tensor:
        return pool_gradient(gradient, self._at_left, self._at_upper, gradient.new_empty(self._shape))


class _Relu(StackedLayer):
    def forward(self, x: Tensor, tensors: Tensors) -> Tensor:
        self._y = x.clamp_min(0)
        return self._y

    def backward(self, gradient: Tensor, tensors: Tensors, found: Tensors, further: bool) -> Tensor:
        of_x: Tensor = aten.threshold_backward(gradient, self._y, 0)
        return of_x


class _Elu(StackedLayer):
    def forward(self, x: Tensor, tensors: Tensors) -> Tensor:
        self._y = functional.elu(x)
        return self._y

    def backward(self, gradient: Tensor, tensors: Tensors, found: Tensors, further: bool) -> Tensor:
        of_x: Tensor = aten.elu_backward(gradient, 1.0, 1.0, 1.0, True, self._y)
        return of_x


class _Tanh(StackedLayer):
    def forward(self, x: Tensor, tensors: Tensors) -> Tensor:
        self._y = x.tanh()
        return self._y

    def backward(self, gradient: Tensor, tensors: Tensors, found: Tensors, further: bool) -> Tensor:
        of_x: Tensor = aten.tanh_backward(gradient, self._y)
        return of_x


class _Norm(StackedLayer):
    """Values `[K, C, N, B]` are brought to mean 0 and variance 1 over cells `[K, G, C/G * N, B]`, then scaled.

    A cell is a group of channels of one record (group norm), or one channel of all of them: then B is 1 (batch norm).
    """

    def __init__(self, name: str, layer: nn.GroupNorm | nn.modules.batchnorm._BatchNorm) -> None:
        self._weight, self._bias = f"{name}.weight", f"{name}.bias"
        self._scales = layer.weight is not None
        self._epsilon = layer.eps

    @abstractmethod
    def _cells(self, values: Tensor) -> tuple[Tensor, int]:
        """The values as `[K, C, N, B]`, and into how many groups channels are put."""

    @abstractmethod
    def _restored(self, cells: Tensor, shape: torch.Size) -> Tensor:
        """The transpose of `_cells`."""

    def _note(self, mean: Tensor, variance: Tensor, count: int, tensors: Tensors) -> None:
        """Keep statistics `[K, G, 1, B]` where the layer tracks them."""

    def forward(self, x: Tensor, tensors: Tensors) -> Tensor:
        self._x, groups = self._cells(x)
        k, c, _, b = self._x.shape
        grouped = self._x.reshape(k, groups, -1, b)
        mean = grouped.mean(2, keepdim=True)
        variance = (grouped - mean).square_().mean(2, keepdim=True)
        self._note(mean, variance, grouped.shape[2], tensors)
        self._mean, self._rate = mean, torch.rsqrt(variance + self._epsilon)
        self._scale = self._spread(self._rate, c)
        if self._scales:
            self._scale = self._scale * tensors[self._weight][:, :, None, None]
        shift = self._spread(mean, c).neg() * self._scale
        if self._scales:
            shift += tensors[self._bias][:, :, None, None]
        return self._restored(torch.addcmul(shift, self._x, self._scale), x.shape)

    def backward(self, gradient: Tensor, tensors: Tensors, found: Tensors, further: bool) -> Tensor:
        g, groups = self._cells(gradient)
        k, c, n, b = g.shape
        plain, weighted = g.sum(2, keepdim=True), (g * self._x).sum(2, keepdim=True)  # [K, C, 1, B]
        # of what is normalised: the gradient times it, summed
        normal = (weighted - self._spread(self._mean, c) * plain) * self._spread(self._rate, c)
        if self._scales:
            torch.sum(normal, (2, 3), out=found[self._weight])
            torch.sum(plain, (2, 3), out=found[self._bias])
            weight = tensors[self._weight][:, :, None, None]
            plain, normal = plain * weight, normal * weight
        if not further:
            return gradient
        count = c // groups * n
        means = [value.view(k, groups, -1, 1, b).sum(2) / count for value in (plain, normal)]
        slope = self._rate.square() * means[1]
        offset = slope * self._mean - self._rate * means[0]
        moved = torch.addcmul(self._spread(offset, c), self._x, self._spread(slope, c), value=-1)
        return self._restored(moved.addcmul_(g, self._scale), gradient.shape)

    @staticmethod
    def _spread(value: Tensor, channels: int) -> Tensor:
        """Figures of groups `[K, G, 1, B]` for each channel `[K, C, 1, B]`."""
        return value.repeat_interleave(channels // value.shape[1], 1)


class _NormByRecord(_Norm):
    def __init__(self, name: str, layer: nn.GroupNorm) -> None:
        super().__init__(name, layer)
        self._groups = layer.num_groups

    def _cells(self, values: Tensor) -> tuple[Tensor, int]:
        cells = values.transpose(1, 2).unsqueeze(2) if values.ndim == 3 else values.flatten(2, 3)
        return cells, self._groups

    def _restored(self, cells: Tensor, shape: torch.Size) -> Tensor:
        return cells.squeeze(2).transpose(1, 2) if len(shape) == 3 else cells.view(shape)


class _NormByChannel(_Norm):
    def __init__(self, name: str, layer: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__(name, layer)
        self._name, self._momentum = name, layer.momentum
        self._tracks = layer.track_running_stats

    def _cells(self, values: Tensor) -> tuple[Tensor, int]:
        last = values.transpose(1, 2) if values.ndim == 3 else values
        return last.flatten(2).unsqueeze(3), last.shape[1]

    def _restored(self, cells: Tensor, shape: torch.Size) -> Tensor:
        return cells.squeeze(3).transpose(1, 2) if len(shape) == 3 else cells.view(shape)

    def _note(self, mean: Tensor, variance: Tensor, count: int, tensors: Tensors) -> None:
        if not self._tracks:
            return
        share = self._momentum or 0.0
        for figure, new, weight in (("mean", mean, share), ("var", variance, share * count / (count - 1))):
            tensors[f"{self._name}.running_{figure}"].mul_(1 - share).add_(new[:, :, 0, 0], alpha=weight)
        tensors[f"{self._name}.num_batches_tracked"].add_(1)


class _Dropout(StackedLayer):
    """Multiplies by the mask `[K, B, ...]` that it is given before each step; None: dropout is off."""

    mask: Tensor | None = None

    def __init__(self, images: bool) -> None:
        self._images = images

    def forward(self, x: Tensor, tensors: Tensors) -> Tensor:
        if self.mask is not None and self._images:
            self.mask = self.mask.permute(BATCH_LAST)
        return x if self.mask is None else x * self.mask

    def backward(self, gradient: Tensor, tensors: Tensors, found: Tensors, further: bool) -> Tensor:
        return gradient if self.mask is None else gradient * self.mask


class _ToImages(StackedLayer):
    """Records `[K, B, C, H, W]` as images."""

    def forward(self, x: Tensor, tensors: Tensors) -> Tensor:
        return x.permute(BATCH_LAST).contiguous()

    def backward(self, gradient: Tensor, tensors: Tensors, found: Tensors, further: bool) -> Tensor:
        return gradient


class _ToVectors(StackedLayer):
    """Images, or records as they came, as vectors."""

    def __init__(self, images: bool) -> None:
        self._images = images

    def forward(self, x: Tensor, tensors: Tensors) -> Tensor:
        self._shape = x.shape
        return (x.permute(BATCH_SECOND) if self._images else x).flatten(2)

    def backward(self, gradient: Tensor, tensors: Tensors, found: Tensors, further: bool) -> Tensor:
        if not self._images:
            return gradient.view(self._shape)
        k, c, h, w, b = self._shape
        return gradient.reshape(k, b, c, h, w).permute(BATCH_LAST).contiguous()


# --- chains -----------------------------------------------------------------------------------------------------------

Images = bool  #: whether a layer gets images rather than vectors
Rule = Callable[[str, Any, Images], StackedLayer | None]  #: a layer of a network, by its name; None: it is not covered


def _convolution(name: str, layer: nn.Conv2d, images: Images) -> StackedLayer | None:
    plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    return _Conv(name, layer) if images and plain and isinstance(layer.padding, tuple) else None


def _pool(name: str, layer: nn.MaxPool2d, images: Images) -> StackedLayer | None:
    given = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode, layer.return_indices)
    return _Pooling() if images and given == (2, 2, 0, 1, False, False) else None


def _batch_norm(name: str, layer: nn.modules.batchnorm._BatchNorm, images: Images) -> StackedLayer | None:
    plain = layer.training and images == isinstance(layer, nn.BatchNorm2d) and _scales_and_shifts(layer)
    return _NormByChannel(name, layer) if plain else None


def _group_norm(name: str, layer: nn.GroupNorm, images: Images) -> StackedLayer | None:
    return _NormByRecord(name, layer) if _scales_and_shifts(layer) else None


def _scales_and_shifts(layer: nn.Module) -> bool:
    """Whether a norm has both parameters or neither."""
    return (layer.weight is None) == (layer.bias is None)


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: lambda name, layer, images: None if images else _Dense(name, layer),
    nn.Conv2d: _convolution,
    nn.MaxPool2d: _pool,
    nn.ReLU: lambda name, layer, images: _Relu(),
    nn.ELU: lambda name, layer, images: _Elu() if layer.alpha == 1 else None,
    nn.Tanh: lambda name, layer, images: _Tanh(),
    nn.GroupNorm: _group_norm,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.Flatten: lambda name, layer, images: _ToVectors(images) if (layer.start_dim, layer.end_dim) == (1, -1) else None,
    MaskedDropout: lambda name, layer, images: _Dropout(images),
}


WITH_PARAMETERS = (_Dense, _Conv, _Norm)


class LayerChain:
    """The layers of a network, from records `[K, B, ...]` to scores `[K, B, classes]` and back."""

    def __init__(self, layers: Sequence[StackedLayer]) -> None:
        self._layers = layers
        self._dropouts = [layer for layer in layers if isinstance(layer, _Dropout)]
        #: nothing before it has parameters
        self._first = next(k for k, layer in enumerate(layers) if isinstance(layer, WITH_PARAMETERS))

    @classmethod
    def of(cls, model: nn.Module) -> LayerChain | None:
        """The chain of a network from a convolution or `flatten` to vectors; None where anything is not covered."""
        if type(model) is not Network or not computes_by_class(model):
            return None
        every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        shared = len({id(own) for _, own in every}) != len(every)
        uncovered = {name for name, _ in model.named_parameters()}
        if not uncovered or shared or not all(own.requires_grad for own in model.parameters()):
            return None
        named = [(name, part) for name, part in model._modules.items() if part is not None]
        images = type(named[0][1]) is nn.Conv2d
        if not images and type(named[0][1]) is not nn.Flatten:
            return None
        layers: list[StackedLayer] = [_ToImages()] if images else []
        for name, module in _pools_first(named):
            rule = RULES.get(type(module))
            layer = rule(name, module, images) if rule else None
            if layer is None:
                return None
            layers.append(layer)
            images = images and not isinstance(layer, _ToVectors)
            if isinstance(layer, WITH_PARAMETERS):
                uncovered -= {f"{name}.weight", f"{name}.bias"}
        return None if images or uncovered else cls(layers)

    def gradients(self, tensors: Tensors, x: Tensor, masks: Sequence[Tensor], slope: Slope, found: Tensors) -> Tensor:
        """Losses `[K]`; the gradients of all parameters are written to `found`, buffers of `tensors` move on."""
        for place, mask in zip_longest(self._dropouts, masks):
            place.mask = mask
        for layer in self._layers:
            x = layer.forward(x, tensors)
        gradient, losses = slope(x)
        for number in range(len(self._layers) - 1, self._first - 1, -1):
            gradient = self._layers[number].backward(gradient, tensors, found, number > self._first)
        return losses


def _pools_first(named: Sequence[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """The layers with each ReLU behind the pool that follows it: the same values, of a quarter as many pixels."""
    order = list(named)
    for here in range(len(order) - 1):
        if isinstance(order[here][1], nn.ReLU) and isinstance(order[here + 1][1], nn.MaxPool2d):
            order[here : here + 2] = order[here + 1], order[here]
    return order


def cross_entropy_slope(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient `[K, B, classes]` of each client's mean cross-entropy over its records, and that mean `[K]`."""
    logs, places, records = torch.log_softmax(scores, 2), labels.unsqueeze(2), scores.shape[1]
    losses = logs.gather(2, places).sum((1, 2)).neg_().div_(records)
    slope = logs.exp_()
    return slope.scatter_add_(2, places, slope.new_full((), -1.0).expand(places.shape)).div_(records), losses


__all__ = ["LayerChain", "Slope", "cross_entropy_slope"]
