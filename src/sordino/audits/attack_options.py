"""What is asked of an attack on a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sordino.audits.findings import Track, quietly

if TYPE_CHECKING:
    from torch import Tensor

    Watch = Callable[[Tensor], None]  #: is handed the best pictures so far, [N, *shape]


@dataclass(frozen=True)
class AttackOptions:
    """Whom to attack and how hard; the same seed gives the same figures."""

    client: int | None = None  #: None: the attack chooses clients by itself
    seed: int = 1
    thorough: bool = False  #: more restarts, steps and shadow models than fit into a few minutes
    device: str = "cpu"
    track: Track = quietly
    watch: Watch | None = None  #: is told how far a search for pictures has come


__all__ = ["AttackOptions"]
