"""Tables of a recipe: their base classes, and the kinds of values that their keys hold.

A part's table is a `Spec`. It has the keys that a recipe may set, says what it needs and what does not fit (`reads`),
and builds the part. Every field has a description, from which the schema, the errors and the documentation are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from sordino.parts.toml import shown

TAGS = ("kind", "name")  #: the keys that tell the forms of a table apart

Found = Iterator[tuple[str, str]]  #: keys, and what is wrong with each; a key that begins with a dot is the table's own


class TomlTable(BaseModel):
    """A table of a recipe: immutable, of exact types (no text for numbers), without unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        model_title_generator=lambda model: model.__qualname__.removesuffix(".Spec"),
    )

    inline: ClassVar[bool] = False  #: whether it is written on one line: epsilon = { linear = [2, 8] }


class Spec(TomlTable):
    """The table of a part: `name` or `kind` tells which part it is, the other keys are the part's own."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # a slot takes tables of several forms, each with its own keys

    @classmethod
    def __pydantic_init_subclass__(cls, **keywords: Any) -> None:
        """Refuse a declaration of the wrong type where it is written: methods compare sets."""
        uses: object = getattr(cls, "uses", frozenset())
        if not isinstance(uses, frozenset):
            raise TypeError(f'{cls.__name__}.uses must be a frozenset, such as frozenset({{"reports"}}), got {uses!r}')

    def checks(self) -> Iterator[tuple[tuple[str, ...], Callable[[Any], Found]]]:
        """What finds conflicts between this table and the rest of the recipe, each with the keys that it reads."""
        marked = {
            name: own._reads
            for cls in reversed(type(self).__mro__)
            for name, own in vars(cls).items()
            if hasattr(own, "_reads")
        }
        yield from ((keys, getattr(self, name)) for name, keys in marked.items())


_Check = TypeVar("_Check", bound=Callable[..., Found])


def reads(*keys: str) -> Callable[[_Check], _Check]:
    """Mark a method `(self, recipe) -> Found` of a `Spec` as a check, which is left out where one of `keys` is wrong.

    "." is the table itself, ".norm" a key of it, "clients.epsilon" a key of the recipe.
    """

    def mark(find: _Check) -> _Check:
        find._reads = keys  # type: ignore[attr-defined]
        return find

    return mark


def tag(name: str, description: str) -> Any:
    """The field `name` or `kind` of a part that recipes know by this name."""
    return Field(default=name, description=description, json_schema_extra={"const": name})


def tag_of(model: type[BaseModel]) -> tuple[str, str] | None:
    """The key and value by which a table tells its form: ("kind", "iid"); None for a table with one form."""
    if issubclass(model, Spec):
        for name in TAGS:
            if name in model.model_fields:
                return name, model.model_fields[name].default
    return None


def missing_or_superfluous(
    part: TomlTable, wanted: Sequence[str], optional: Sequence[str], others: Sequence[str], whom: str
) -> Found:
    """Problems of fields (None: not given) of which one use of a table wants some and knows nothing of others."""
    for name in wanted:
        if getattr(part, name) is None:
            purpose = type(part).model_fields[name].description
            yield f".{name}", f"missing; {whom} needs it: {purpose}"
    for name in others:
        if name not in (*wanted, *optional) and getattr(part, name) is not None:
            yield f".{name}", f"got {shown(getattr(part, name))}; {whom} takes none: leave it out"


def refusal(text: str) -> PydanticCustomError:
    """A validator's own complete sentence, which is shown as it is."""
    return PydanticCustomError("refusal", "{text}", {"text": text})


@dataclass(frozen=True)
class Says:
    """What a field allows, in words, where its type does not say it well."""

    phrase: str


# --- kinds of values --------------------------------------------------------------------------------------------------


def as_tuple(value: object) -> object:
    """A list as a tuple; anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


def _plain_values(value: object) -> object:
    """Only what TOML and JSON both hold: a recipe must mean the same wherever it is read."""
    if isinstance(value, dict):
        return {key: _plain_values(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_values(inner) for inner in value]
    if isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise refusal(f"got {value!r} in it; allowed: text, finite numbers, true, false, and lists and tables of these")


Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Lt(1)]
Probability = Annotated[float, Gt(0), Le(1)]
Inside = Annotated[float, Gt(0), Lt(1)]

Texts = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
SomeTexts = Annotated[tuple[str, ...], BeforeValidator(as_tuple), MinLen(1)]
Numbers = Annotated[tuple[float, ...], BeforeValidator(as_tuple), MinLen(1)]
Positives = Annotated[tuple[Positive, ...], BeforeValidator(as_tuple), MinLen(1)]
Options = Annotated[dict[str, Any], AfterValidator(_plain_values)]
