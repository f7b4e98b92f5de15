"""The tables of mechanisms and of the range that values are clipped to: what all of them share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

from annotated_types import MinLen
from pydantic import Discriminator, Field, Tag

from sordino.errors import InvalidInput
from sordino.mechanisms.domain import Box, L1Ball, L2Ball
from sordino.parts.slot import Slot
from sordino.parts.tables import Found, Positive, Spec, missing_or_superfluous, reads, tag
from sordino.parts.toml import shown

if TYPE_CHECKING:
    from sordino.mechanisms.interface import Mechanism


class Layer(Protocol):
    """Neighbouring values of a vector that have a name."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...


# --- ranges -----------------------------------------------------------------------------------------------------------


def _layers_form(value: Any) -> str:
    return "layers" if isinstance(value, dict) else "number"


Radius = Annotated[
    Annotated[Positive, Tag("number")] | Annotated[dict[str, Positive], MinLen(1), Tag("layers")],
    Discriminator(_layers_form),
]
Centre = Annotated[
    Annotated[float, Tag("number")] | Annotated[dict[str, float], MinLen(1), Tag("layers")], Discriminator(_layers_form)
]


class RangeSpec(Spec):
    """Where values are clipped to before they are randomised: public, never computed from private data."""

    adapts: ClassVar[bool] = False  #: whether the server chooses it anew in every round


class FixedRange(RangeSpec):
    """Where values are clipped to before they are randomised: public, and the same in every round."""

    kind: str = tag("fixed", "the same in every round")
    radius: Radius = Field(description="of the interval, ball or sphere: one number, or a table by layer")
    centre: Centre = Field(default=0.0, description="of the interval: one number, or a table by layer")


def per_layer(name: str, given: float | Mapping[str, float], layers: Sequence[Layer]) -> list[float]:
    """One number for every layer, from one for all or from a table by layer."""
    if not isinstance(given, Mapping):
        return [float(given)] * len(layers)
    names = [layer.name for layer in layers]
    if set(given) != set(names):
        raise InvalidInput(
            f"method.range.{name} names the layers {', '.join(sorted(given))}; this model has {', '.join(names)}: "
            "give each of them a number, or one number for all"
        )
    return [float(given[layer]) for layer in names]


def _one_number(name: str, given: float | Mapping[str, float], why: str) -> float:
    """A number that cannot differ between layers."""
    if isinstance(given, Mapping):
        raise InvalidInput(f"method.range.{name} must be one number: {why}")
    return float(given)


@dataclass(frozen=True, eq=False)
class Vectors:
    """What a mechanism is built for: vectors of `values` values in `layers`, clipped to a range."""

    range: Any  #: a table with `centre` and `radius`; None where the mechanism clips nothing
    layers: Sequence[Layer]
    values: int

    def box(self) -> Box:
        """One interval for all values, or one per layer."""
        centre, radius = self.range.centre, self.range.radius
        if not isinstance(radius, Mapping) and not isinstance(centre, Mapping):
            return Box(float(centre), float(radius))
        sizes = [layer.size for layer in self.layers]
        return Box.per_tensor(sizes, per_layer("centre", centre, self.layers), per_layer("radius", radius, self.layers))

    def radius(self, why: str) -> float:
        """The radius where it is one for all layers, and why it must be."""
        return _one_number("radius", self.range.radius, why)

    def ball_radius(self) -> float:
        """The radius of a ball or sphere around zero."""
        if _one_number("centre", self.range.centre, "a ball or sphere lies around zero") != 0:
            raise InvalidInput("method.range.centre must be 0: a ball or sphere lies around zero")
        return self.radius("the mechanism sees the whole vector")

    def within(self, norm: str) -> Any:
        """The domain of values (box) or of vectors by their norm (l1, l2)."""
        if norm == "box":
            return self.box()
        return L1Ball(self.ball_radius()) if norm == "l1" else L2Ball(self.ball_radius())


# --- mechanisms -------------------------------------------------------------------------------------------------------


class RandomizerSpec(Spec):
    """What the tables of all randomisers share, be it of vectors or of records."""

    #: what a report looks like, by which methods choose: points (one of two for each value), votes, laplace, gaussian,
    #: coded (whole numbers), other; empty where nothing is randomised
    noise: ClassVar[str] = "other"

    @property
    def label(self) -> str:
        """The name or address by which the recipe names it."""
        return str(getattr(self, "name", ""))

    @property
    def takes_epsilon(self) -> bool:
        """Whether `clients.epsilon` is its strength: not where sigma is given."""
        return self.calibrated_by != "sigma"

    @property
    def calibrated_by(self) -> str:
        """How its noise is chosen; empty for mechanisms with a single way."""
        return str(getattr(self, "calibration", ""))

    def needed(self, epsilon: float | None) -> float:
        """Epsilon, which this mechanism cannot do without."""
        if epsilon is None:
            raise InvalidInput(f"the mechanism {self.label} needs clients.epsilon: give a number, a list or a range")
        return epsilon

    @reads("clients.epsilon", "method.name", ".")
    def epsilon_where_it_is_used(self, recipe: Any) -> Found:
        """An epsilon is given exactly where the mechanism takes one."""
        given, by_sigma = recipe.clients.epsilon is not None, self.calibrated_by == "sigma"
        whom = f"{self.label} with calibration = sigma" if by_sigma else self.label
        if self.takes_epsilon and not given:
            yield "clients.epsilon", f"missing; the mechanism {whom} needs it: one number, or one for each client"
        if not self.takes_epsilon and given:
            yield "clients.epsilon", f"the mechanism {whom} takes none: leave it out, or name another mechanism"


class MechanismSpec(RandomizerSpec):
    """The table of a mechanism: what methods and checks ask it, and how the mechanism is built."""

    #: where there are several ways to choose the noise: the keys that each of them needs, and no other takes
    calibrations: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @abstractmethod
    def build(self, epsilon: float | None, vectors: Vectors) -> Mechanism:
        """The mechanism of this strength for such vectors."""

    def builder(self, range_: Any, layers: Sequence[Layer], values: int) -> Callable[[float | None], Mechanism]:
        """Epsilon -> the mechanism for vectors of `values` values."""
        return partial(self.build, vectors=Vectors(range_, layers, values))

    @property
    def form(self) -> str:
        """The mechanism as a recipe names it, with the norm or calibration that decides."""
        details = [str(getattr(self, name)) for name in ("norm", "calibration") if hasattr(self, name)]
        return f"{self.label} ({', '.join(details)})" if details else self.label

    @property
    def clips(self) -> bool:
        """Whether values are brought into `method.range` first."""
        return True

    @property
    def around_zero(self) -> bool:
        """Whether the range is a ball, a sphere or coded integers, and so has no centre."""
        return getattr(self, "norm", "box") != "box"

    @property
    def one_radius(self) -> bool:
        """Whether one radius serves all layers."""
        return self.around_zero

    @reads(".", "method.name")
    def a_calibration_has_its_own_fields(self, recipe: Any) -> Found:
        """Each calibration has the numbers that it needs, and no others."""
        if self.calibrations:
            known = dict.fromkeys(key for keys in self.calibrations.values() for key in keys)
            whom = f"{self.label} with calibration = {self.calibrated_by}"
            yield from missing_or_superfluous(self, self.calibrations[self.calibrated_by], (), tuple(known), whom)

    @reads("method.name", "method.range", ".")
    def a_range_that_fits(self, recipe: Any) -> Found:
        """A range is given exactly where values are clipped, and has the form that the mechanism needs."""
        if not hasattr(recipe.method, "range"):
            return
        range_ = recipe.method.range
        if range_ is None:
            if self.clips:
                yield (
                    "method.range",
                    f'missing; the mechanism {self.label} needs a public range, such as kind = "fixed" and a radius; '
                    "nothing computes it from private data",
                )
            return
        if not self.clips:
            yield "method.range", f"the mechanism {self.label} clips nothing: leave it out, or take clip-only"
        elif self.around_zero and range_.centre != 0:
            yield (
                "method.range.centre",
                f"got {shown(range_.centre)}; {self.form} lies around zero: leave it out",
            )
        if self.clips and self.one_radius and isinstance(range_.radius, dict):
            yield (
                "method.range.radius",
                f"got {shown(range_.radius)}; {self.form} has one radius for all layers: give one number",
            )


def noise(*kinds: str) -> Callable[[Any], bool]:
    """Fits mechanisms that randomise in one of these ways, and those that do not randomise."""
    return lambda spec: spec.noise in ("", *kinds)


AnyMechanism = Annotated[MechanismSpec, Slot("mechanism")]
Fixed = Annotated[RangeSpec, Slot("range", lambda spec: not spec.adapts)]
FixedUnsaid = Annotated[RangeSpec, Slot("range", lambda spec: not spec.adapts, unsaid="fixed")]
