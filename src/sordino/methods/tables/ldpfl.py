"""The table of LDPFL, with its extractors and its code of features."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le, MinLen
from pydantic import AfterValidator, Field

from sordino.learning.training_tables import Training
from sordino.mechanisms.record_tables import RecordMechanismSpec, Theorem2
from sordino.methods.aggregation import AggregationSpec, Mean, offering
from sordino.methods.selection import AnySelection, SelectAll
from sordino.methods.tables.spec import AGGREGATION, CHANNEL, SELECTION, Clamp, DirectAlone, MethodSpec, direct
from sordino.parts.registry import allowed_model
from sordino.parts.slot import Slot
from sordino.parts.tables import Count, Found, Options, Spec, Table, reads, tag

if TYPE_CHECKING:
    from sordino.methods.extractors import Extractor


class ExtractorSpec(Spec):
    """What makes features of records."""

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int, seed: int) -> Extractor:
        """The extractor for records of this shape."""


ModelName = Annotated[
    str,
    MinLen(1),
    AfterValidator(allowed_model),
    Field(description="a model known by name with a layer called flatten, up to which it is used"),
]
ModelOptions = Annotated[Options, Field(description="the model's options")]


class TrainedExtractor(ExtractorSpec):
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
        from sordino.methods import extractors

        network, features = extractors.network_of(self.model, self.options, shape, classes)
        training = self.training.local(self.model, shape)
        return extractors.TrainedExtractor(network, training, features, seed, self.start)


class RandomExtractor(ExtractorSpec):
    """A network as the seed starts it, untrained: public, and the same for all."""

    kind: str = tag("random", "an untrained network, public and the same for all")
    model: ModelName
    options: ModelOptions = Field(default_factory=dict)

    def build(self, shape: tuple[int, ...], classes: int, seed: int) -> Extractor:
        from sordino.methods import extractors

        network, features = extractors.network_of(self.model, self.options, shape, classes)
        return extractors.RandomExtractor(network, features, seed)


class OrientedExtractor(ExtractorSpec):
    """How strongly each part of an image changes in which direction: fixed filters, public, the same for all."""

    kind: str = tag("oriented", "fixed filters, public and the same for all")
    orientations: Annotated[int, Ge(2), Le(16)] = Field(default=4, description="directions")
    cells: Annotated[int, Ge(1), Le(32)] = Field(default=7, description="parts along each side of an image")

    def build(self, shape: tuple[int, ...], classes: int, seed: int) -> Extractor:
        from sordino.methods import extractors

        return extractors.OrientedExtractor(self.orientations, self.cells, shape)


class Encoding(Table):
    """The fixed-point code of a feature (Eq. 10 of LDPFL), whole + fraction + 1 bits."""

    whole: Annotated[int, Ge(0), Le(20)] = Field(default=4, description="bits before the point")
    fraction: Annotated[int, Ge(0), Le(20)] = Field(default=5, description="bits after it")
    order: Literal["msb", "lsb"] = Field(
        default="msb", description="which bit comes first: theorem-2 keeps even positions and scrambles odd ones"
    )
    reading: Literal["text", "equation"] = Field(
        default="text", description="sign and magnitude as the paper's words say, or its equation as printed, unsigned"
    )


class Ldpfl(MethodSpec):
    """LDPFL: each client randomises its records' features once; a network is federated over what came of them."""

    code: ClassVar[str] = "sordino.methods.ldpfl"
    name: str = tag("ldpfl", "a network federated over records randomised once")
    server_lr: ClassVar[float] = 1.0
    selection: AnySelection = Field(default=SelectAll(), description=SELECTION)
    extractor: Annotated[ExtractorSpec, Slot("extractor")] = Field(description="what makes features of records")
    encoding: Encoding = Field(default=Encoding(), description="how features become bits")
    mechanism: Annotated[RecordMechanismSpec, Slot("record mechanism")] = Field(
        default=Theorem2(), description="the randomiser of a record"
    )
    learning: Literal["together", "alone"] = Field(
        default="together", description="the network is federated, or every client trains its own"
    )
    examined: Literal["randomised", "plain"] = Field(
        default="randomised", description="whether test examples pass through the randomiser as records do"
    )
    clamp: Clamp = None
    channel: DirectAlone = Field(default_factory=direct, description=CHANNEL)
    aggregation: Annotated[AggregationSpec, Slot("aggregation", offering("samples", "reports"))] = Field(
        default=Mean(), description=AGGREGATION
    )

    def record_shape(self, recipe: Any, shape: tuple[int, ...], classes: int) -> tuple[int, ...]:
        from sordino.methods.ldpfl import record_shape

        return record_shape(recipe, shape, classes)

    @reads("method.name", "method.mechanism", "model.name", "training.augmentation")
    def randomised_records_are_no_images(self, recipe: Any) -> Found:
        """The federated training sees features that were randomised, and no images."""
        if recipe.training.augmentation is not None:
            yield (
                "training.augmentation",
                "got some, but this training sees randomised features only: give it to method.extractor.training",
            )


__all__ = ["Encoding", "ExtractorSpec", "Ldpfl", "OrientedExtractor", "RandomExtractor", "TrainedExtractor"]
