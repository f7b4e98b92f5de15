"""What an attack on a run is: a class in a file of its own, which states its name, its needs and its words.

Recipes, the command line and reports know a shipped attack by its line in `parts/shipped.py`, others by entry points or
as `package.module:Class`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

from sordino.audits.attack_options import AttackOptions
from sordino.audits.finished_run import FinishedRun
from sordino.errors import InvalidInput
from sordino.parts import registry
from sordino.parts.shipped import SHIPPED
from sordino.parts.words import nearest
from sordino.privacy.leaks import Leak
from sordino.report.attack_file import check_leak
from sordino.report.words import listed

NAME = re.compile(r"[a-z][a-z0-9-]*")


class RunAttack(ABC):
    """An attack on what the clients of a finished simulation sent."""

    name: ClassVar[str]  #: in tables and in attacks.json: small letters, digits and hyphens
    needs: ClassVar[str]  #: what it cannot do without, as it follows "it needs"

    @abstractmethod
    def carry_out(self, run: FinishedRun, asked: AttackOptions) -> tuple[Leak, ...]:
        """What it finds: nothing, or `InvalidInput` with the reason, where it does not fit the run."""

    @abstractmethod
    def deed(self, leak: Leak) -> str:
        """What it does to so many, as it follows "of 32": "records the attack identifies"."""

    def leaks(self, run: FinishedRun, asked: AttackOptions) -> tuple[Leak, ...]:
        """What it finds, with its words for it."""
        found = self.carry_out(run, asked)
        if strange := [leak.attack for leak in found if leak.attack != self.name]:
            raise InvalidInput(f"the attack {self.name} gave a leak of {strange[0]!r}: give its own name there")
        named = tuple(replace(leak, deed=self.deed(leak)) for leak in found)
        for leak in named:
            try:
                check_leak(leak)
            except (ValueError, TypeError) as error:
                raise InvalidInput(f"the attack {self.name} gave a leak that no report can show: {error}") from error
        return named


def find_attack(name: str) -> RunAttack:
    """The attack of that name or address; one that is not known is refused with those that are."""
    address = registry.address_of("attack", name)
    if address is None:
        known = list(registry.addresses("attack"))
        raise InvalidInput(f"there is no attack {name!r}; {nearest(name, known)}there are {listed(known)}")
    made = registry.load(address)
    if not (isinstance(made, type) and issubclass(made, RunAttack)):
        raise InvalidInput(f"{address} is no attack: it must be a class of sordino.audits.attack_interface.RunAttack")
    if not NAME.fullmatch(made.name) or SHIPPED["attack"].get(made.name, address) != address:
        raise InvalidInput(
            f"{address} calls itself {made.name!r}; allowed: small letters, digits and hyphens, and no shipped name"
        )
    return made()


__all__ = ["RunAttack", "find_attack"]
