"""What makes features of records: a network that each client trained on its own records, or something public.

Features that a public extractor makes of a record depend on that record alone. Those of a network that was trained on
all of a client's records depend on each of them: another record changes the features of all.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.errors import STOPPING, InvalidInput
from sordino.learning import imagenet, models
from sordino.learning.alone import Alone, beside
from sordino.learning.cohort import ClientData, LocalTraining
from sordino.learning.examples import Normalisation
from sordino.learning.linear_head import whole_scores
from sordino.learning.models import Network, parameter_layout
from sordino.learning.scattering import Scattering
from sordino.learning.stacked_model import probes
from sordino.learning.unit_vectors import Form, WhitenedHead, unit_vectors
from sordino.methods.interface import Bench, ClientState
from sordino.methods.upload import Draw
from sordino.parts.words import nearest
from sordino.randomness import Purpose

PIECE = 500  #: records whose features are computed at a time
GPU_PIECE = 10_000  #: the same on a GPU
ALONE = 1  #: as many where a record's features must not depend on its neighbours, not even in their last bits
PARAMETERS = "extractor"  #: under which a client keeps its own extractor's parameters
STATISTICS = "statistics."  #: before the names of its running statistics


class Extractor(ABC):
    """Records `[n, ...]` to features `[n, r]`: map after map, the cells of a map side by side."""

    shape: tuple[int, int]  #: maps, and cells of each, of the features of one record
    public: bool  #: whether it knows nothing of anybody's records
    scores: int = 0  #: that lie behind the features of one record, for a head that adds to them
    exact: bool = False  #: whether a record's features have the same bits on every device, whatever is computed beside

    @cached_property
    def alone(self) -> Alone:
        """Computes one record after another."""
        return Alone()

    @property
    def features(self) -> int:
        """r: maps times cells."""
        return math.prod(self.shape)

    def fit(self, clients: Sequence[int], data: Sequence[ClientData], draw: Draw, bench: Bench) -> list[ClientState]:
        """What each of K clients keeps to make features with: nothing, where the extractor is public."""
        return [{} for _ in clients]

    def tensors(self) -> dict[str, Tensor]:
        """What a model's file must hold to make the same features; nothing where the table and the seed say it all."""
        return {}

    @abstractmethod
    def __call__(self, x: Tensor, kept: ClientState) -> Tensor:
        """The features of some records, with what their client keeps; behind them the scores, where there are any."""


class TrainedExtractor(Extractor):
    """The convolution module (CM) of a network (CNN) that each client trains on its own records (section 3.1)."""

    public = False

    def __init__(
        self, network: Network, training: LocalTraining, features: int, seed: int, start: Literal["common", "own"]
    ) -> None:
        self._network, self._training, self._seed, self._start = network, training, seed, start
        self._module = network.extractor().eval()
        self._layout = parameter_layout(network)
        self._own = parameter_layout(self._module)
        self.shape = (features, 1)

    def fit(self, clients: Sequence[int], data: Sequence[ClientData], draw: Draw, bench: Bench) -> list[ClientState]:
        starts = torch.stack([self._start_of(client, draw) for client in clients])
        trained = bench.trainer(self._network).train(starts, data, self._training, draw(clients))
        named = self._layout.unflatten(trained.parameters.cpu())
        flat = self._own.flatten({name: named[name] for name in self._own.names}).numpy()
        kept = dict(self._module.named_buffers())
        statistics = {name: value.cpu().numpy() for name, value in trained.buffers.items() if name in kept}
        return [
            {PARAMETERS: flat[k].copy(), **{STATISTICS + name: value[k].copy() for name, value in statistics.items()}}
            for k in range(len(clients))
        ]

    def _start_of(self, client: int, draw: Draw) -> Tensor:
        """Where a client's training starts: where all start, or a place from its own stream."""
        seed = self._seed
        if self._start == "own":
            low, high = draw([client]).words(np.zeros(1, np.intp), Purpose.INIT, 0, 0, 2)[0].tolist()
            seed = high << 32 | low
        return self._layout.flatten(models.initial_parameters(self._network, seed))

    def __call__(self, x: Tensor, kept: ClientState) -> Tensor:
        named = self._own.unflatten(torch.from_numpy(np.asarray(kept[PARAMETERS])).to(x.device))
        statistics = {
            name.removeprefix(STATISTICS): torch.from_numpy(np.asarray(value)).to(x.device)
            for name, value in kept.items()
            if name.startswith(STATISTICS)
        }
        return _features(self._module, {**named, **statistics}, x)


class RandomExtractor(Extractor):
    """The convolution module as the seed starts it: nothing is learnt, so nothing is told."""

    public = True

    def __init__(self, network: Network, features: int, seed: int) -> None:
        self._module = network.extractor().eval()
        started = models.initial_parameters(network, seed)
        self._parameters = {name: started[name] for name in parameter_layout(self._module).names}
        self.shape = (features, 1)

    def __call__(self, x: Tensor, kept: ClientState) -> Tensor:
        own = {**self._parameters, **dict(self._module.named_buffers())}
        return _features(self._module, {name: value.to(x.device) for name, value in own.items()}, x)


class PlainExtractor(Extractor):
    """Records as they are: channels are maps, and pixels their cells; the columns of a table are maps of one cell."""

    public = True
    exact = True

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = (shape[0], math.prod(shape[1:]))

    def __call__(self, x: Tensor, kept: ClientState) -> Tensor:
        return x.flatten(1)


class OrientedExtractor(Extractor):
    """Derivatives of a blurred image in several directions, rectified and averaged over cells: one filter layer.

    The root evens out strong and weak edges, and of every cell the mean over directions is taken away: what is left
    says which way edges run, not how many there are.
    """

    public = True

    def __init__(self, orientations: int, cells: int, shape: tuple[int, ...]) -> None:
        if len(shape) != 3 or min(shape[1:]) < cells:
            raise InvalidInput(
                f"an oriented extractor of {cells}x{cells} cells needs images at least that large, and records have "
                f"the shape {list(shape)}: take fewer cells, or another extractor"
            )
        self._filters, self._cells = derivatives(orientations), cells
        self.shape = (orientations, cells * cells)

    def __call__(self, x: Tensor, kept: ClientState) -> Tensor:
        reach = self._filters.shape[-1] // 2
        grey = F.pad(x.mean(dim=1, keepdim=True), [reach] * 4, mode="replicate")  # an image's border is no edge
        changes = F.conv2d(grey, self._filters.to(x.device)).relu()
        cells = F.adaptive_avg_pool2d(changes, self._cells).add(1e-4).sqrt()
        return (cells - cells.mean(dim=1, keepdim=True)).flatten(1)


class ScatteringExtractor(Extractor):
    """Scattering of images: how strongly each cell answers to waves, and to waves of these answers."""

    public = True
    exact = True

    def __init__(self, shape: tuple[int, ...], scales: int, angles: int, orders: int, opponent: bool = False) -> None:
        if len(shape) != 3:
            raise InvalidInput(
                f"scattering takes images of channels x height x width, and records have the shape {list(shape)}: "
                "take another extractor"
            )
        if opponent and shape[0] != 3:
            raise InvalidInput(
                f"opponent colours are made of three channels, and records have {shape[0]}: leave method.extractor."
                "opponent out"
            )
        self._opponent = opponent
        self._scattering = Scattering(*shape, scales=scales, angles=angles, orders=orders)
        maps, down, across = self._scattering.shape
        self.shape = (maps, down * across)

    def __call__(self, x: Tensor, kept: ClientState) -> Tensor:
        return self._scattering(opponents(x) if self._opponent else x).flatten(1)


def opponents(x: Tensor) -> Tensor:
    """Images of red, green and blue as lightness, red against green, and both against blue: pixel by pixel."""
    red, green, blue = x.double().unbind(dim=1)
    return torch.stack([(red + green + blue) / 3, (red - green) / 2, (red + green) / 4 - blue / 2], dim=1)


class NetworkExtractor(Extractor):
    """A frozen network, in evaluation mode. Records `[n, channels, height, width]` may become maps or plain vectors.

    With `scores`, a network that is `Truncated` gives as many scores of its own beside its features.
    """

    def __init__(self, module: nn.Module, shape: tuple[int, ...], *, public: bool, scores: int = 0) -> None:
        self._module = module.eval().requires_grad_(False)
        self.public, self.scores = public, scores
        try:
            _, *own = models.output_shape(self._module, shape)
            given = models.output_shape(module.module, shape)[1:] if scores and isinstance(module, Truncated) else ()
        except Exception as error:
            raise InvalidInput(
                f"the network of method.extractor failed on two records of shape {list(shape)}: {error}"
            ) from error
        self.shape = (own[0], math.prod(own[1:])) if len(own) == 3 else (math.prod(own), 1)
        if scores and given != (scores,):
            raise InvalidInput(
                f"method.extractor.base needs a network with one score for each of the {scores} classes, and this one "
                f"gives {list(given)}: leave it out, and a head is trained from nothing"
            )

    @cached_property
    def alone(self) -> Alone:
        return Alone(self._module)

    def __call__(self, x: Tensor, kept: ClientState) -> Tensor:
        module = self._module.to(x.device)
        with torch.no_grad():
            if self.scores and isinstance(module, Truncated):
                features, scores = module.both(x)
                return torch.cat([features.flatten(1).float(), scores.float()], dim=1)
            found: Tensor = module(x)
        return found.flatten(1).float()

    def tensors(self) -> dict[str, Tensor]:
        return self._module.state_dict()


class ImageNetExtractor(Extractor):
    """Public ImageNet features (`learning/imagenet.py`) of images that were normalised with these constants."""

    public = True
    shape = (imagenet.FEATURES, 1)

    def __init__(self, shape: tuple[int, ...], mean: Sequence[float], std: Sequence[float]) -> None:
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise InvalidInput(
                f"ImageNet features take images of 1 or 3 channels, and records have the shape {list(shape)}: take "
                "another extractor"
            )
        Normalisation(tuple(mean), tuple(std)).check(shape)
        self._mean, self._std = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
        self._network = imagenet.load()

    @cached_property
    def alone(self) -> Alone:
        return Alone(self._network)

    def __call__(self, x: Tensor, kept: ClientState) -> Tensor:
        pixels = x * self._std.to(x.device) + self._mean.to(x.device)
        features: Tensor = self._network.to(x.device)(pixels)
        return features


class Truncated(nn.Module):
    """A network up to one of its layers, wherever that is: the output of that layer."""

    def __init__(self, module: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._output: Tensor | None = None
        layer.register_forward_hook(self._keep)

    def _keep(self, _module: nn.Module, _given: object, output: Tensor) -> None:
        self._output = output

    def forward(self, input: Tensor) -> Tensor:
        """The layer's output; what follows it is computed in vain."""
        return self.both(input)[0]

    def both(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's output, and the network's."""
        self._output = None
        scores = self.module(input)
        output, self._output = self._output, None
        if output is None:
            raise InvalidInput("method.extractor.up_to names a layer that the network does not use: name another one")
        return output, scores


class RecordHead(WhitenedHead):
    """A linear head with all that comes before it: it takes normalised records, as they were trained on."""

    def __init__(self, extractor: Extractor, form: Form, limit: int, classes: int, bias: float) -> None:
        super().__init__(form, classes, bias)
        self._extractor, self._limit = extractor, limit

    def forward(self, input: Tensor) -> Tensor:
        """Scores `[n, classes]` of records `[n, ...]`."""
        return super().forward(whole_features(self._extractor, input, self.form, self._limit))


def whole_features(extractor: Extractor, x: Tensor, form: Form, limit: int, piece: int = PIECE) -> Tensor:
    """int16 `[n, width]`, a few records at a time: their features in floats are never there all together."""
    found = torch.empty(len(x), form.width, dtype=torch.int16, device=x.device)
    with extractor.alone if piece == ALONE else nullcontext(beside) as compute:
        for first in range(0, len(x), piece):
            made = compute(partial(_features_or_none, extractor, kept={}), x[first : first + piece])
            found[first : first + piece, : form.size] = unit_vectors(made[:, : form.size], form, limit)
            if form.scores:
                found[first : first + piece, form.size :] = whole_scores(made[:, form.size :])
    return found


def _features_or_none(extractor: Extractor, x: Tensor, kept: ClientState) -> Tensor:
    """Features of some records; those of one that has none are 0: that it is there must not stop the others.

    Whatever is raised counts, memory that runs out included: what shipped extractors need follows from shapes alone. A
    GPU, where simulations alone compute, has to take smaller pieces.
    """
    try:
        return extractor(x, kept).reshape(len(x), extractor.features + extractor.scores)
    except STOPPING:
        raise
    except BaseException as error:
        if isinstance(error, torch.OutOfMemoryError) and x.device.type != "cpu":
            raise
        if len(x) > 1:
            return torch.cat([_features_or_none(extractor, x[at : at + 1], kept) for at in range(len(x))])
        return torch.zeros(1, extractor.features + extractor.scores, device=x.device)


def frozen_network(
    name: str, options: Mapping[str, object], shape: tuple[int, ...], classes: int, weights: Path
) -> nn.Module:
    """The network of this name with the parameters and statistics of a file: all of them, and no others."""
    network = models.untried(name, input_shape=shape, classes=classes, **options)
    described = f"{name} with {classes} classes (method.extractor.classes) and the options {dict(options)}"
    models.load_weights(network, weights, "method.extractor.weights", described)
    return network


def cut(network: nn.Module, up_to: str | None) -> nn.Module:
    """The network up to a layer; without one, layers in a row before their last dense one, and others as they are."""
    row = list(network.named_children()) if isinstance(network, nn.Sequential) else []
    if up_to is None:
        dense = [at for at, (_, layer) in enumerate(row) if isinstance(layer, nn.Linear)]
        return Network(OrderedDict(row[: dense[-1]])) if dense and dense[-1] else network
    names = [name for name, _ in row]
    if up_to in names:
        return Network(OrderedDict(row[: names.index(up_to) + 1]))
    layers = {name: layer for name, layer in network.named_modules() if name}
    _check_layer(up_to, layers)
    return Truncated(network, layers[up_to])


def whole_up_to(network: nn.Module, up_to: str | None) -> Truncated:
    """The network up to the layer at which `cut` cuts it, with all that follows: its scores are wanted too."""
    layers = {name: layer for name, layer in network.named_modules() if name}
    if up_to is None:
        row = list(network.children()) if isinstance(network, nn.Sequential) else []
        dense = [at for at, layer in enumerate(row) if isinstance(layer, nn.Linear)]
        if not dense or not dense[-1]:
            raise InvalidInput(
                "method.extractor.base takes the features of one layer and the scores of the whole network: name that "
                f"layer with method.extractor.up_to; allowed: {', '.join(layers)}"
            )
        return Truncated(network, row[dense[-1] - 1])
    _check_layer(up_to, layers)
    return Truncated(network, layers[up_to])


def _check_layer(up_to: str, layers: Mapping[str, nn.Module]) -> None:
    if up_to not in layers:
        raise InvalidInput(
            f"method.extractor.up_to = {up_to!r} is no layer of the network: {nearest(up_to, tuple(layers))}allowed: "
            f"{', '.join(layers)}"
        )


def _features(module: nn.Module, named: Mapping[str, Tensor], x: Tensor) -> Tensor:
    with torch.no_grad():
        return models.call(module, named, (x,))


def derivatives(orientations: int, reach: int = 2) -> Tensor:
    """`[orientations, 1, 2 reach + 1, 2 reach + 1]`: slopes of a Gaussian of width 1, evenly spread over the circle."""
    place = torch.arange(-reach, reach + 1, dtype=torch.float32)
    down, across = torch.meshgrid(place, place, indexing="ij")
    bell = torch.exp(-(down**2 + across**2) / 2)
    angles = [2 * math.pi * k / orientations for k in range(orientations)]
    slopes = torch.stack([(math.cos(angle) * across + math.sin(angle) * down) * bell for angle in angles])
    return (slopes / slopes.abs().sum(dim=(1, 2), keepdim=True)).unsqueeze(1)


def features_of(extractor: Extractor, x: Tensor, kept: ClientState, *, piece: int = PIECE) -> NDArray[np.float32]:
    """Features `[n, r]` of as many records as there are, `piece` of them at a time.

    One at a time (`ALONE`), those of an extractor that is not exact do not depend on the other records either.
    """
    found = torch.empty(len(x), extractor.features)
    with extractor.alone if piece == ALONE else nullcontext(beside) as compute:
        for first in range(0, len(x), piece):
            made = compute(partial(_features_or_none, extractor, kept=kept), x[first : first + piece])
            found[first : first + piece] = torch.nan_to_num(made)
    return found.numpy()


def remembers(extractor: Extractor, shape: Sequence[int]) -> bool:
    """Whether a public record's features change after or beside those of another, or cannot be made at all."""
    both = probes(shape)
    one, other = both[:1], both[1:]
    try:
        with Alone():
            found = [extractor(x, {}) for x in (one, other, one, one, both)]
    except Exception:
        return True
    beside = torch.allclose(found[4], torch.cat(found[:2]), rtol=1e-2, atol=1e-2 * float(found[4].abs().max()))
    return not beside or len({found[k].numpy().tobytes() for k in (0, 2, 3)}) > 1


def network_of(name: str, options: Mapping[str, object], shape: tuple[int, ...], classes: int) -> tuple[Network, int]:
    """The network of this name for records of this shape, and how many features its convolutions make."""
    network = models.build(name, input_shape=shape, classes=classes, **options)
    if not isinstance(network, Network):
        raise InvalidInput(f"method.extractor.model = {name!r} is no sordino.learning.models.Network: name one")
    return network, models.feature_size(network, shape)


__all__ = [
    "ALONE", "PIECE", "Extractor", "ImageNetExtractor", "NetworkExtractor", "OrientedExtractor", "PlainExtractor",
    "RandomExtractor", "RecordHead", "ScatteringExtractor", "TrainedExtractor", "Truncated", "cut", "derivatives",
    "features_of", "frozen_network", "network_of", "remembers", "whole_features", "whole_up_to",
]  # fmt: skip
