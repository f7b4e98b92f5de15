"""Who is asked in a round: the server's choice, from its own stream of the seed."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.parts.slot import Slot
from sordino.parts.tables import Count, Found, Probability, Spec, reads, tag
from sordino.randomness import Keystream, Purpose, threshold

if TYPE_CHECKING:
    from sordino.recipe import Recipe


class SelectionSpec(Spec):
    """How the clients of a round are chosen."""

    steady: ClassVar[bool] = False  #: whether exactly `asked` clients are asked in every round

    @abstractmethod
    def asked(self, clients: int) -> int:
        """How many of so many clients are asked, at most."""

    @abstractmethod
    def chosen(self, clients: int, seed: int, round: int) -> list[int]:
        """Who is asked in this round, in ascending order."""

    def expected(self, clients: int) -> float:
        """How many of so many clients are asked on average."""
        return float(self.asked(clients))

    def choose(self, clients: int, seed: int, round: int) -> list[int]:
        """Who is asked in this round: what `chosen` says, held to what the table declares, on which proofs rely."""
        found = self.chosen(clients, seed, round)
        most = self.asked(clients)
        if found != sorted(set(found) & set(range(clients))):
            raise InvalidInput(f"{type(self).__name__}.chosen must name some of {clients} clients once, in order")
        if len(found) > most or (self.steady and len(found) != most):
            raise InvalidInput(
                f"{type(self).__name__} asks {len(found)} clients in round {round}, and declares "
                f"{'exactly' if self.steady else 'at most'} {most}: mend `asked`, or declare steady = False"
            )
        return found


class SelectAll(SelectionSpec):
    """Every client, every round."""

    steady: ClassVar[bool] = True
    kind: str = tag("all", "every client, every round")

    def asked(self, clients: int) -> int:
        return clients

    def chosen(self, clients: int, seed: int, round: int) -> list[int]:
        return list(range(clients))


class _SelectSome(SelectionSpec):
    """So many clients, chosen anew in every round."""

    steady: ClassVar[bool] = True

    def chosen(self, clients: int, seed: int, round: int) -> list[int]:
        order = np.argsort(lots(clients, seed, round), kind="stable")
        return sorted(order[: self.asked(clients)].tolist())


class SelectCount(_SelectSome):
    """k clients, chosen by the server anew in every round."""

    kind: str = tag("count", "k clients, chosen anew in every round")
    k: Count = Field(description="how many")

    def asked(self, clients: int) -> int:
        return min(self.k, clients)

    @reads(".", "split")
    def no_more_than_there_are(self, recipe: Recipe) -> Found:
        """Refuse to ask more clients than there are."""
        if self.k > recipe.number_of_clients:
            yield ".k", f"got {self.k}; allowed: at most {recipe.number_of_clients}, all clients"


class SelectFraction(_SelectSome):
    """A fixed fraction of the clients, chosen by the server anew in every round."""

    kind: str = tag("fraction", "a fraction of the clients, chosen anew in every round")
    p: Probability = Field(description="which fraction: max(1, round(p * clients)) are asked")

    def asked(self, clients: int) -> int:
        return max(1, math.floor(self.p * clients + 0.5))


class SelectProbability(SelectionSpec):
    """Each client with the same probability, independently of the others."""

    kind: str = tag("probability", "each client by itself, with probability p")
    p: Probability = Field(description="the probability")

    def asked(self, clients: int) -> int:
        return clients

    def expected(self, clients: int) -> float:
        return self.p * clients

    def chosen(self, clients: int, seed: int, round: int) -> list[int]:
        words = lots(clients, seed, round)
        return np.flatnonzero(words >> np.uint64(32) < np.uint64(threshold(self.p))).tolist()


def lots(clients: int, seed: int, round: int) -> NDArray[np.uint64]:
    """A random number for every client, of the server's stream for this round."""
    stream = Keystream.simulation(seed, [0], round)
    words = stream.words(np.zeros(1, np.intp), Purpose.SELECT, 0, 0, 2 * clients)
    return np.ascontiguousarray(words[0]).view("<u8")


AnySelection = Annotated[SelectionSpec, Slot("selection"), Field(description="who is asked in a round")]

__all__ = ["AnySelection", "SelectAll", "SelectCount", "SelectFraction", "SelectProbability", "SelectionSpec", "lots"]
