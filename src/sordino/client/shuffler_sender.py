"""A client's way to a shuffler: its report sealed value by value to the server, and sent to the one in between.

The client speaks to the address that its owner allowed, and that the agreed recipe names. Before anything is sealed it
compares what the shuffler announces with what was agreed to: the plan, the server's key, how many are mixed, how many
values lie in one envelope.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from sordino.channels.spec import ChannelSpec
from sordino.client.refusal import Reason, Refused, refusing
from sordino.client.settings import OwnLimits, OwnShuffler
from sordino.errors import InvalidInput
from sordino.shuffler.envelopes import seal, spread
from sordino.shuffler.remote import Announcement, Rejected, Remote, ShufflerUnreachable, patiently
from sordino.wire.messages import Plan

STEP = "post"
PATIENCE = 60.0  #: seconds for which a shuffler that does not answer is tried again

Found = TypeVar("Found")


class ShufflerSender:
    """Seals and sends the reports of one federation."""

    def __init__(
        self, channel: ChannelSpec, own: OwnShuffler, folder: Path, limits: OwnLimits, patience: float = PATIENCE
    ) -> None:
        """`channel` is the agreed recipe's `method.channel`."""
        self._seconds, self._longest = float(channel.seconds), limits.delay
        self._crowd, self._group = int(channel.at_least), int(channel.group)
        self._key = X25519PublicKey.from_public_bytes(bytes.fromhex(channel.key))
        trusted = None if own.trusted is None else folder / Path(own.trusted).expanduser()
        self._remote = Remote(own.url, own.token_in(folder), trusted=trusted)
        self._latency, self._patience = own.latency, patience
        self._proposed = False

    def propose(self) -> None:
        """Propose T, once, where the owner has set one."""
        if self._latency is not None and not self._proposed:
            self._remote.propose(self._latency)
            self._proposed = True

    def announced(self, plan: Plan, values: int) -> Announcement:
        """What the shuffler says of this plan's round; refused where it is not what was agreed to."""
        found = self._patiently(lambda: self._remote.announced(plan.round))
        self._patiently(self.propose)
        terms, latency, lasts = found.terms, found.latency, min(found.terms.seconds, self._seconds)
        with refusing(Reason.NOT_IN_RECIPE, plan.federation):
            found.check(plan, self._crowd, self._key)
            if (terms.values, terms.group) != (values, self._group):
                raise InvalidInput(
                    f"the shuffler's round is of {terms.values} values, {terms.group} in an envelope, and the recipe "
                    f"has {values}, {self._group} in an envelope: nothing was sealed"
                )
            if not 0 <= latency < lasts:
                raise InvalidInput(
                    f"reports would be spread over T = {latency:g} seconds, and the round lasts {lasts:g}: nothing was "
                    "sealed"
                )
        if latency > self._longest:
            raise Refused(
                Reason.LIMIT_DELAY,
                f"reports would be spread over T = {latency:g} seconds, and limits.delay in client.toml is "
                f"{self._longest:g}: nothing was sealed",
            )
        return found

    def send(self, found: Announcement, report: bytes, group: int) -> None:
        """Seal a report and send it, each value after its own delay where a T was agreed; durable there on return."""
        bodies = seal(report, found.terms, group, found.key)
        leaving = spread(bodies, found.latency) if found.latency else [(0.0, body) for body in bodies]
        began = time.monotonic()
        for after, body in leaving:
            time.sleep(max(0.0, began + after - time.monotonic()))
            self._patiently(partial(self._remote.send, found.terms.round, body))

    def _patiently(self, ask: Callable[[], Found]) -> Found:
        """Try again while the shuffler is away or busy; a refusal is final."""
        try:
            return patiently(ask, self._patience)
        except (ShufflerUnreachable, Rejected) as error:
            raise Refused(Reason.UNAVAILABLE, str(error)) from None


__all__ = ["STEP", "ShufflerSender"]
