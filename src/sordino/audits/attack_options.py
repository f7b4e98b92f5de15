"""What is asked of an attack on a run."""

from __future__ import annotations

from dataclasses import dataclass

from sordino.audits.findings import Track, quietly


@dataclass(frozen=True)
class AttackOptions:
    """Whom to attack and how hard; the same seed gives the same figures."""

    client: int | None = None  #: None: the attack chooses clients by itself
    seed: int = 1
    thorough: bool = False  #: more restarts, steps and shadow models than fit into a few minutes
    device: str = "cpu"
    track: Track = quietly


__all__ = ["AttackOptions"]
