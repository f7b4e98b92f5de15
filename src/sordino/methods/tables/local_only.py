"""The table of local learning."""

from __future__ import annotations

from typing import Any, ClassVar

from sordino.mechanisms import NoPrivacy
from sordino.mechanisms.spec import MechanismSpec
from sordino.methods.aggregation import Mean
from sordino.methods.selection import SelectAll
from sordino.methods.tables.spec import MethodSpec, direct
from sordino.parts.tables import Found, reads, tag


class LocalOnly(MethodSpec):
    """Every client learns alone for as many rounds, and sends nothing: what federated learning must beat."""

    code: ClassVar[str] = "sordino.methods.local_only"
    name: str = tag("local-only", "every client learns alone; nothing is sent")
    server_lr: ClassVar[float] = 1.0
    selection: ClassVar[SelectAll] = SelectAll()
    mechanism: ClassVar[MechanismSpec] = NoPrivacy.Spec()
    aggregation: ClassVar[Mean] = Mean()

    @property
    def channel(self) -> Any:
        return direct()

    @reads("clients.epsilon", "method.name")
    def takes_no_epsilon(self, recipe: Any) -> Found:
        """Nothing leaves that could be randomised."""
        yield from self.mechanism.epsilon_where_it_is_used(recipe)


__all__ = ["LocalOnly"]
