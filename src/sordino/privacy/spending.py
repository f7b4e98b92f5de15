"""What had been spent after each round of a run: the figures that lead its statement, of the releases so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sordino.errors import InvalidInput
from sordino.privacy import history
from sordino.privacy.history import RoundReleases
from sordino.privacy.statement import View, covering, views


@dataclass(frozen=True)
class RoundSpending:
    """Epsilons after a round, of the client that lost most; None where nothing is stated of them yet."""

    round: int
    proven: float | None
    claimed: float | None

    @classmethod
    def of(cls, round: int, view: View) -> RoundSpending:
        """What a view says after a round."""
        return cls(round, view.proven[1], view.claimed[1] if view.claimed else None)


def spending(
    releases: Sequence[RoundReleases], view: View, clients: int, *, delta: float, every: int = 1
) -> tuple[RoundSpending, ...]:
    """The epsilons of this view after every round, or after every second, third, ... and the last.

    Each is composed anew from all releases up to that round, so that the last equals the figure of the statement.
    """
    if every < 1:
        raise InvalidInput(f"every is a whole number of rounds from 1 on, got {every}")
    rounds = [spent.round for spent in releases if spent.round]
    chosen = [number for number in rounds if number % every == 0 or number == rounds[-1]]
    return tuple(_after(number, releases, view, clients, delta) for number in chosen)


def _after(last: int, releases: Sequence[RoundReleases], view: View, clients: int, delta: float) -> RoundSpending:
    so_far = [spent for spent in releases if spent.round <= last]
    stated = history.statement(so_far, clients, delta=delta, title="")
    known = (*covering(stated.views), *views(stated.rows))
    found = next((own for own in known if own.key == view.key), None)
    if found is not None:
        return RoundSpending.of(last, found)
    nothing = not any(len(who) for spent in so_far for who in spent.clients)
    return RoundSpending(last, 0.0 if nothing else None, None)


__all__ = ["RoundSpending", "spending"]
