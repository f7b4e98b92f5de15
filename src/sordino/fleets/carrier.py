"""What a fleet needs of Flower: who is there, a way to send bytes to nodes, and a way to fetch their replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from sordino.errors import SordinoError


class CarrierLost(SordinoError):
    """The way to the nodes broke: what was under way is lost, and has to be sent again once there is a new one."""


@dataclass(frozen=True)
class NodeFacts:
    """A node that is online."""

    id: int
    since: str  #: when it was activated
    name: str = ""  #: under which its key was registered


@dataclass(frozen=True)
class Letter:
    """Frames for one node."""

    node: int
    frames: bytes  #: often the same for many nodes
    before: bytes  #: frames of this node's own, which come first
    seconds: float  #: after which nobody waits for the reply


@dataclass(frozen=True)
class LetterReply:
    """The reply to a letter."""

    letter: str  #: the id that `push` gave it
    frames: bytes = b""
    error: str = ""  #: why there are no frames


class Carrier(ABC):
    """Carries bytes to nodes and back."""

    @abstractmethod
    def nodes(self) -> Sequence[NodeFacts]:
        """All nodes that are online."""

    @abstractmethod
    def push(self, letters: Sequence[Letter]) -> Sequence[str]:
        """Send letters; an id for each, empty where it was not taken."""

    @abstractmethod
    def pull(self, letters: Sequence[str]) -> Sequence[LetterReply]:
        """Those replies to these letters that have come."""


__all__ = ["Carrier", "CarrierLost", "Letter", "LetterReply", "NodeFacts"]
