"""The channel through a shuffler service: of each class the coordinator gets counts, and no report has a name.

    post    the plan out; a client seals every value to the server's key, sends the envelopes to the shuffler, and
            answers the coordinator with an empty body once the shuffler has all of them

The coordinator opens the round at the shuffler, asks the clients, waits for the batches and opens the envelopes. A
round is held once: whoever is killed in the middle of it asks for it again, on the same terms, and gets the same batch.
A batch stays at the shuffler until a later round begins, by when the state after its own round must be on disk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.channels.interface import Channel, Exchange
from sordino.errors import InvalidInput
from sordino.methods.upload import Lost, ReportSum
from sordino.shuffler import keys
from sordino.shuffler.parallel import open_batch
from sordino.shuffler.remote import Rejected, Remote, ShufflerUnreachable, patiently
from sordino.shuffler.terms import Terms
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.channels.shuffle import ShufflerChannel
    from sordino.methods.interface import Method

POLL = 0.1  #: seconds between two looks for a batch
GRACE = 30.0  #: seconds that a shuffler may be silent, or late with a batch that is due
EARLIER = 4  #: rounds that a shuffler keeps waiting, at most


@dataclass(frozen=True)
class Access:
    """What the server has of a shuffler: where it is, the token to speak to it, and the key that envelopes are for."""

    remote: Remote
    key: X25519PrivateKey

    @classmethod
    def read(cls, url: str, token: Path, key: Path, trusted: Path | None = None) -> Access:
        """From the files that `sordino shuffler serve` (the token) and `sordino shuffler keys` (the key) made."""
        try:
            said = token.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"{token} cannot be read ({error}): it is the file server.token in the shuffler's folder"
            ) from None
        return cls(Remote(url, said, trusted=trusted), keys.private_key(key))


class ServiceChannel(Channel):
    """One step, `post`; then for each class the sum of what the shuffler let go, or why there is none."""

    def __init__(self, method: Method, given: ShufflerChannel, access: Access, *, workers: int | None = None) -> None:
        """`given` is the recipe's `method.channel`; `workers` are processes to open envelopes (default: all cores)."""
        if given.key != access.key.public_key().public_bytes_raw().hex():
            raise InvalidInput(
                "method.channel.key is not the public half of the server's key: clients would seal to somebody else. "
                "`sordino shuffler keys` printed the one to put there"
            )
        self._method, self._given, self._access, self._workers = method, given, access, workers

    def collect(self, exchange: Exchange, plan: bytes, clients: Sequence[int]) -> Iterator[ReportSum | Lost]:
        """The sums of the reports on this plan."""
        asked = Plan.decode(plan)
        tally = self._method.tally(asked)
        members = tally.classes(clients)
        counts = [len(members.get(group, ())) for group in range(len(tally.upload.strengths))]
        terms = Terms.of(asked, tally.upload.values, counts, self._given.seconds, self._given.group)
        for earlier in range(max(1, terms.round - EARLIER), terms.round):  # counted for good: their state is on disk
            self.let_go(earlier, terms.classes)
        try:
            crowd = self._crowd(terms)
        except (Rejected, ShufflerUnreachable) as error:
            yield from (Lost(group, str(error)) for group in members)
            return
        until = time.monotonic() + terms.seconds + GRACE
        able = [
            client for own in members.values() if len(own) >= crowd for client in own
        ]  # of others nothing may leave
        sent = {client for client, _ in exchange("post", dict.fromkeys(able, plan))} if able else set()
        for group, own in members.items():
            yield self._found(terms, group, [c for c in own if c in sent], own, crowd, until)

    def _crowd(self, terms: Terms) -> int:
        """Open a round; how many reports of a class the shuffler mixes at least: its own number, or the recipe's."""
        remote = self._access.remote
        patiently(lambda: remote.open_round(terms), GRACE)
        return max(self._given.at_least, patiently(lambda: remote.announced(terms.round), GRACE).at_least)

    def _found(
        self, terms: Terms, group: int, sent: Sequence[int], asked: Sequence[int], crowd: int, until: float
    ) -> ReportSum | Lost:
        short = len(sent) < crowd  # the others declined or are gone: there is nothing to wait for
        try:
            if short:
                patiently(lambda: self._access.remote.withdraw(terms.round, group), GRACE)
            batch = self._batch(terms.round, group, until)
        except Rejected as error:
            return Lost(group, _too_few(group, len(sent), len(asked), crowd) if short else str(error))
        except ShufflerUnreachable as error:
            return Lost(group, str(error))
        if batch is None:
            return Lost(group, f"the shuffler did not let go of class {group} of round {terms.round} in time")
        found = open_batch(batch, terms, self._access.key, self._workers)
        if not found.clients:
            return Lost(group, f"not one whole report of class {group} could be opened: {dict(found.refused)}")
        # An answer may have been lost when its envelopes were not: others of the class stand for those then.
        names = [*sorted(sent), *sorted(set(asked) - set(sent))][: found.clients]
        return found.sum(names)

    def _batch(self, round: int, group: int, until: float) -> bytes | None:
        while (batch := patiently(lambda: self._access.remote.batch(round, group), GRACE)) is None:
            if time.monotonic() > until:
                return None
            time.sleep(POLL)
        return batch

    def let_go(self, round: int, classes: int) -> None:
        """Tell the shuffler that a round's batches are counted for good; for the last round nobody else does."""
        for group in range(classes):
            with suppress(Rejected, ShufflerUnreachable):
                self._access.remote.taken(round, group)


def _too_few(group: int, sent: int, asked: int, crowd: int) -> str:
    """Why the shuffler lets nothing of a class go."""
    if asked < crowd:
        return (
            f"the shuffler mixes at least {crowd} clients, and class {group} has {asked} in this round: nobody of it "
            "was asked. Let more take part, or lower --at-least of `sordino shuffler serve` and method.channel.at_least"
        )
    return (
        f"the shuffler mixes at least {crowd} clients, and {sent} of {asked} of class {group} sent their reports: it "
        "deleted them unopened"
    )


__all__ = ["Access", "ServiceChannel"]
