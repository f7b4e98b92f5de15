"""The place where messages leave the coordinator for real clients: each goes out in an envelope with its signature."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from sordino.channels.secure_sum import plan_in
from sordino.errors import InvalidInput
from sordino.fleets.interface import WHOLE_STEPS, Fleet, OuterFleet, Reply
from sordino.wire.messages import Plan
from sordino.wire.signing import SigningKey


class SignedFleet(OuterFleet):
    """Another fleet, to which every message goes with the coordinator's signature.

    The later steps of a secure sum carry no plan: they are signed as steps of the one that its first step brought.
    """

    def __init__(self, fleet: Fleet, key: SigningKey, terms: bytes) -> None:
        """`terms` is the digest of what all clients agreed to (`CommonTerms.digest`)."""
        super().__init__(fleet)
        self._key, self._terms = key, terms
        self._plan: Plan | None = None

    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: float | None) -> Generator[Reply]:
        """The clients' replies to the same messages, signed."""
        shared: dict[bytes, list[int]] = {}  # one envelope for all that are sent the same
        for client, message in messages.items():
            shared.setdefault(message, []).append(client)
        found = {message: self._envelope(step, clients, message) for message, clients in shared.items()}
        return self._fleet.exchange(step, {client: found[message] for client, message in messages.items()}, deadline)

    def _envelope(self, step: str, clients: list[int], message: bytes) -> bytes:
        if step in WHOLE_STEPS:
            self._plan = Plan.decode(message)
        elif step == "keys":
            self._plan = plan_in(message)
        if self._plan is None:
            raise InvalidInput(f"the step {step!r} came before any plan")
        return self._key.envelope(step, self._plan, self._terms, clients, message)


__all__ = ["SignedFleet"]
