"""`attacks.json` of a run's folder: what attacks on the run found, checked when it is read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from sordino.errors import InvalidInput
from sordino.privacy.leaks import VARIANTS, Leak
from sordino.report.records import plain, to_page
from sordino.storage.files import write_whole

FILE = "attacks.json"
_NAME = re.compile(r"[a-z][a-z0-9-]*")  #: of an attack
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True)
class AttackFile:
    """All leaks that were found, and which attacks did not fit the run, each as `name: why`."""

    leaks: tuple[Leak, ...] = ()
    left_out: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> AttackFile | None:
        """What lies in a run's folder; None where nothing does, `InvalidInput` where it is damaged."""
        path = folder / FILE
        try:
            packed = json.loads(path.read_bytes())
            if not isinstance(packed["left_out"], list):
                raise InvalidInput(f"left_out is no list: {packed['left_out']!r}")
            leaks = tuple(_checked(Leak.from_json(one)) for one in packed["leaks"])
            return cls(leaks, tuple(map(str, packed["left_out"])))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidInput(
                f"{path} is damaged ({type(error).__name__}: {error}): `sordino attack` writes it anew"
            ) from None

    def write(self, folder: Path) -> None:
        """Put it into a run's folder, in place of an earlier one."""
        packed = {"leaks": [leak.to_json() for leak in self.leaks], "left_out": self.left_out}
        write_whole(folder / FILE, to_page(packed).encode())

    @property
    def tried(self) -> frozenset[str]:
        """The attacks that it says something of."""
        return frozenset({leak.attack for leak in self.leaks} | {words.partition(":")[0] for words in self.left_out})

    def without(self, attacks: Collection[str]) -> AttackFile:
        """What it says of all other attacks."""
        return AttackFile(
            tuple(leak for leak in self.leaks if leak.attack not in attacks),
            tuple(words for words in self.left_out if words.partition(":")[0] not in attacks),
        )


def check_leak(leak: Leak) -> None:
    """Refuse a leak that could not be read again once it is written: it would take all others in the file with it."""
    written = plain(leak.to_json())
    assert isinstance(written, dict)
    _checked(Leak.from_json(written))


def _checked(leak: Leak) -> Leak:
    """The same leak; a ValueError where a page could not show it."""
    named = isinstance(leak.attack, str) and _NAME.fullmatch(leak.attack) and isinstance(leak.deed, str)
    if not named or leak.variant not in VARIANTS or not isinstance(leak.how, str):
        raise InvalidInput(f"unknown attack {leak.attack!r}, variant {leak.variant!r} or method {leak.how!r}")
    if not isinstance(leak.figures, Mapping):
        raise InvalidInput(f"figures of {leak.attack} are no table: {leak.figures!r}")
    counts = (leak.share.hits, leak.share.trials)
    points = [value for point in (*leak.curve, *leak.limit) for value in point]
    shares = [leak.chance, *([] if leak.bound is None else [leak.bound]), *points]
    if not all(type(count) is int for count in counts) or not all(0 <= share <= 1 for share in shares):
        raise InvalidInput(f"a share of {leak.attack} is no number from 0 to 1")
    if not all(isinstance(text, str) and _BASE64.fullmatch(text) for text in (*leak.originals, *leak.pictures)):
        raise InvalidInput(f"a picture of {leak.attack} is not in base64")
    return leak


def figure_of(leak: Leak, name: str) -> float | None:
    """One of a leak's figures; None where it has none, or none that is finite."""
    value = leak.figures.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


__all__ = ["FILE", "AttackFile", "check_leak", "figure_of"]
