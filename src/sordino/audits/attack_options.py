"""What is asked of an attack on a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sordino.audits.findings import Track, quietly

if TYPE_CHECKING:
    from torch import Tensor

    from sordino.fleets.ray_workers import RayPool

    Watch = Callable[[Tensor], None]  #: is handed the best pictures so far, [N, *shape]


@dataclass(frozen=True)
class AttackOptions:
    """Whom to attack and how hard; the same seed gives the same figures."""

    client: int | None = None  #: None: the attack chooses clients by itself
    seed: int = 1
    thorough: bool = False  #: more restarts, steps and shadow models than fit into a few minutes
    device: str = "cpu"
    workers: int | None = None  #: processes that train clients; None: one per core where that pays
    pool: RayPool | None = None  #: of a cluster, which trains clients in their place
    track: Track = quietly
    watch: Watch | None = None  #: is told how far a search for pictures has come


__all__ = ["AttackOptions"]
