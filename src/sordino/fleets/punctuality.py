"""Who is waited for: a place that lets rounds pass must first answer some in time.

After the first round that a place lets pass it is not waited for until it has answered 1 round in time, after the
second 3, then 7, 15, 31 and at most 63. It is asked in every round all the same, and what it answers in time counts.
"""

from __future__ import annotations

from collections import Counter

MOST_MISSES = 6  #: rounds let pass beyond which no more is asked: 2^6 - 1 answers in time


class Punctuality:
    """Rounds let pass, and rounds answered in time since, by place. A place keeps its record when its holder changes.

    Otherwise one visitor could let a round pass, leave, join anew, and be waited for again.
    """

    def __init__(self) -> None:
        self._misses: Counter[int] = Counter()
        self._answers: Counter[int] = Counter()  # in time, since the last miss

    def awaits(self, client: int) -> bool:
        """Whether rounds wait for a client."""
        return self._answers[client] >= (1 << self._misses[client]) - 1

    def note_answer(self, client: int) -> None:
        """A client has answered a round in time."""
        self._answers[client] += 1

    def note_miss(self, client: int) -> None:
        """A round has waited for a client in vain."""
        self._misses[client] = min(MOST_MISSES, self._misses[client] + 1)
        self._answers[client] = 0


__all__ = ["MOST_MISSES", "Punctuality"]
