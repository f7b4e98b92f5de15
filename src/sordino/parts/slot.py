"""The type of a recipe's key that takes a part: it reads which part is named, finds it and validates with its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, core_schema

from sordino.errors import InvalidInput, SordinoError
from sordino.parts import registry
from sordino.parts.tables import Spec, refusal
from sordino.parts.toml import shown
from sordino.parts.words import nearest
from sordino.report.words import listed


@dataclass(frozen=True)
class Slot:
    """`Annotated[MechanismSpec, Slot("mechanism")]`: the table of any mechanism, shipped, installed or one's own.

    `fits` says which tables a method can use, by what they declare. A table that does not say its form has the one
    named `unsaid`.
    """

    part: str
    fits: Callable[[Any], bool] = bool
    unsaid: str | None = None

    def tables(self) -> dict[str, type[Spec]]:
        """The tables of the known parts that fit, by name."""
        return {name: spec for name, spec in registry.tables(self.part).items() if self._fits(spec)}

    def _fits(self, spec: type[Spec]) -> bool:
        """Whether a table is of this kind, and one that can be used here."""
        try:
            return self.fits(spec)
        except AttributeError:  # it declares nothing of what parts of this kind declare
            return False

    def find(self, name: object) -> type[Spec] | None:
        """The table of a part that fits, by its name or address."""
        spec = registry.find(self.part, name) if isinstance(name, str) else None
        if spec is not None and not self._fits(spec):
            allowed = listed(list(self.tables()), "or")
            raise InvalidInput(f"it is no {self.part} that can be used here; allowed: {allowed}")
        return spec

    @property
    def key(self) -> str:
        """The key that tells the forms apart."""
        return "name" if self.part in ("mechanism", "record mechanism", "method", "optimizer") else "kind"

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: object) -> Spec:
            spec = self._read(value)
            if isinstance(source, type) and not isinstance(spec, source):
                raise self._refused(
                    spec, f"{getattr(spec, self.key)} is no {self.part}: its table must be a {source.__name__}"
                )
            return spec

        return core_schema.no_info_plain_validator_function(read)

    def _read(self, value: object) -> Spec:
        if isinstance(value, Spec):
            name = getattr(value, self.key, None)
            if self._found(value, name) is not type(value):
                raise self._unknown(value, name)
            return value
        if not isinstance(value, Mapping):
            raise refusal(f"got {shown(value)}; allowed: a table with one of these forms: {', '.join(self.tables())}")
        name = value.get(self.key, self.unsaid)
        if name is None:
            raise self._refused(value, f"missing; allowed: {listed(list(self.tables()), 'or')}")
        spec = self._found(value, name)
        if spec is None:
            raise self._unknown(value, name)
        if self.key not in spec.model_fields:
            field = f'{self.key}: str = tag("its-name", "what it is")'
            text = f"the table {spec.__qualname__} has no field {self.key}; every {self.part} says its name: {field}"
            raise self._refused(value, f"got {shown(name)}; {text}")
        try:
            return spec.model_validate({self.key: name, **value})
        except (ValidationError, SordinoError):
            raise
        except Exception as error:  # of somebody's own code
            raise self._refused(value, f"got {shown(name)}; its table cannot be made ({error})") from error

    def _found(self, value: object, name: object) -> type[Spec] | None:
        try:
            return self.find(name)
        except InvalidInput as error:
            raise self._refused(value, f"got {shown(name)}; {error}") from None

    def _unknown(self, value: object, name: object) -> ValidationError:
        known = list(self.tables())
        return self._refused(value, f"got {shown(name)}; {nearest(name, known)}allowed: {listed(known, 'or')}")

    def _refused(self, value: object, text: str) -> ValidationError:
        """The error at the key that tells the form."""
        line = InitErrorDetails(type=refusal(text), loc=(self.key,), input=value)
        return ValidationError.from_exception_data(self.part, [line])

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, object]:
        forms = {name: handler(_referred(spec)) for name, spec in self.tables().items()}
        mapping = {name: form["$ref"] for name, form in forms.items()}
        return {
            "oneOf": list(forms.values()),
            "discriminator": {"propertyName": self.key, "mapping": mapping},
        }


def _referred(spec: type[Spec]) -> CoreSchema:
    """The core schema of a table under a name, so that a JSON Schema describes it once."""
    whole: Any = spec.__pydantic_core_schema__
    inner, others = (whole["schema"], whole["definitions"]) if whole["type"] == "definitions" else (whole, [])
    named = {**inner, "ref": f"{spec.__module__}.{spec.__qualname__}:{id(spec)}"}
    return core_schema.definitions_schema(named, others)
