"""What every mechanism is: a domain, `randomize`, `estimate`, exact bias and variance, a guarantee, an encoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from sordino.errors import InvalidInput
from sordino.mechanisms import likelihood
from sordino.mechanisms import output as outputs
from sordino.mechanisms.arrays import Float32s, Float64s, Floats, Numbers, Vector, as_matrix, as_shaped, row_parameters
from sordino.mechanisms.domain import Box, Domain
from sordino.mechanisms.integers import MIN_EPSILON
from sordino.mechanisms.laws import Law
from sordino.mechanisms.likelihood import Ratio
from sordino.mechanisms.output import Output
from sordino.mechanisms.reach import Reach
from sordino.privacy.guarantee import SERVER, Adjacency, Claim, Guarantee, Infinite, as_adjacency, check_count
from sordino.randomness import Randomness

if TYPE_CHECKING:
    from sordino.mechanisms.cases import Case, Specimen
    from sordino.mechanisms.tuning import Ranges, Tuning


@dataclass(frozen=True)
class Diagnostics:
    """What a client may look at but never send: how much was clipped, how much noise was added.

    No codec takes it, and it refuses to be pickled, so a report cannot hold it.
    """

    clipped_fraction: Float64s  #: [K] share of values outside the domain
    noise_scale: Float64s  #: [K] standard deviation of the estimate of one value at the centre of the domain

    def __reduce__(self) -> NoReturn:
        raise TypeError("diagnostics are local to a client and cannot be serialised")


class Randomized(NamedTuple):
    """The output, which may be encoded and sent, and the diagnostics, which may not."""

    output: Output
    local: Diagnostics


class Mechanism(ABC):
    """A randomiser over `[K, d]`: K clients, d values each, with parameters per client.

    Parameters have one entry per client, or a single one for all.
    """

    name: ClassVar[str]
    randomizes: ClassVar[bool] = True  #: False for doubles that add no noise
    bounded: ClassVar[bool] = True  #: False where a report may hold any number
    in_pages: ClassVar[bool] = False  #: whether web pages can run it, by `page_settings`
    domain: Domain
    parameter_sets: int = 1  #: how many clients it holds parameters for; 1: the same for any number of clients
    claims: tuple[Claim, ...] = ()  #: the paper's, one per client or one for all; empty where there is no paper

    @property
    def clients(self) -> int | None:
        """The number of clients the parameters describe; None when one set of parameters serves any number."""
        return None if self.parameter_sets == 1 else self.parameter_sets

    @abstractmethod
    def randomize(self, values: ArrayLike, randomness: Randomness, *, tensor: int = 0) -> Randomized:
        """Clip `[K, d]` values (or one vector) to the domain and randomise them."""

    @abstractmethod
    def estimate(self, output: Output) -> Floats:
        """`[K, d]` estimates of the clipped values; unbiased where the mechanism allows it."""

    @abstractmethod
    def bias(self, values: ArrayLike) -> Float64s:
        """E[estimate] - value, exactly, for `[K, d]` values; beyond the domain it includes the clipping."""

    @abstractmethod
    def variance(self, values: ArrayLike) -> Float64s:
        """Var[estimate], exactly, for `[K, d]` values."""

    @abstractmethod
    def guarantee(self, adjacency: Adjacency = Adjacency.CLIENT, *, values: int = 1, client: int = 0) -> Guarantee:
        """What one release of `values` values by this client guarantees against the server."""

    def __init_subclass__(cls, **keywords: object) -> None:
        """Take away a guarantee that was written for other noise than the class's own."""
        super().__init_subclass__(**keywords)
        inherited = getattr(super(cls, cls), "randomize")  # noqa: B009
        replaced = "randomize" in vars(cls) and not getattr(inherited, "__isabstractmethod__", False)
        if replaced and "guarantee" not in vars(cls):
            cls.guarantee = _unproven_noise  # type: ignore[method-assign]

    def claim(self, *, values: int = 1, client: int = 0) -> Claim | None:
        """What the paper claims for the same release, verbatim; None where there is no paper."""
        return self.claims[0 if len(self.claims) == 1 else self.row_of(client)] if self.claims else None

    def __repr__(self) -> str:
        who = "any number of clients" if self.clients is None else f"{self.clients} clients"
        return f"<{type(self).__name__} on {type(self.domain).__name__} for {who}>"

    def encode(self, output: Output) -> list[bytes]:
        """One compact byte string per client."""
        return outputs.encode(output)

    @abstractmethod
    def decode(self, reports: Sequence[bytes], values: int) -> Output:
        """The outputs that `encode` wrote; anything outside the output set is refused."""

    def page_settings(self, values: int) -> dict[str, object]:
        """The whole numbers that a page needs, as docs/web-protocol.md describes them; the domain is sent beside it."""
        raise InvalidInput(f"the mechanism {self.name} has no form in pages")

    def shuffled_claim(self, clients: int, *, client: int = 0) -> Claim | None:
        """What the paper claims where the single parameters of n clients are shuffled; None where it does not."""
        return None

    # --- for subclasses: what is given fits the parameters

    def values_of(self, values: ArrayLike, randomness: Randomness | None = None) -> Floats:
        """`[K, d]` values that fit the domain, the parameters and the randomness; a box finds NaN when it clips."""
        w = as_shaped(values) if isinstance(self.domain, Box) else as_matrix(values)
        self.domain.check_values(w.shape[1])
        self.check_rows(len(w), randomness)
        return w

    def check_rows(self, rows: int, randomness: Randomness | None = None) -> None:
        """Refuse a cohort that does not match the parameters or the randomness."""
        if rows < 1:
            raise InvalidInput("there are no clients: give at least one row of values, or one report")
        if self.clients not in (None, rows):
            raise InvalidInput(f"the mechanism holds parameters for {self.clients} clients, the values are for {rows}")
        if randomness is not None and randomness.clients != rows:
            raise InvalidInput(f"the randomness is for {randomness.clients} clients, the values are for {rows}")

    def row_of(self, client: int) -> int:
        """The row of a client's parameters: its own, or the one for all."""
        if self.parameter_sets == 1:
            return 0
        if not 0 <= client < self.parameter_sets:
            raise InvalidInput(f"there are parameters for clients 0 to {self.parameter_sets - 1}, not for {client}")
        return client

    def row_sets(self, rows: int) -> Numbers:
        """`[K]`: the set of parameters that each row uses."""
        return row_parameters(np.arange(self.parameter_sets), rows)

    # --- what `sordino plan` needs

    @classmethod
    def tunings(cls, ranges: Ranges) -> Sequence[Tuning]:
        """The ways to fit its parameter to a budget, one for each norm that it clips by."""
        return ()

    @property
    def least_strength(self) -> float:
        """The smallest epsilon (or alpha) per value that its tables resolve."""
        return MIN_EPSILON

    @classmethod
    def sigma_range(cls, radius: float) -> tuple[float, float]:
        """The standard deviations it takes for values, or vectors, of this radius."""
        raise InvalidInput(f"the mechanism {cls.name} has no sigma that could be planned")

    # --- what audits need: a mechanism that leaves these out can run, but is audited less

    @classmethod
    def audit_cases(cls, epsilon: float) -> Iterator[Case]:
        """Worst pairs of inputs at this strength (a paper's own settings scale with it), for `sordino audit`."""
        return iter(())

    @classmethod
    def specimens(cls, epsilon: float) -> Iterator[Specimen]:
        """Mechanisms of this strength for `sordino audit` to check against their exact law."""
        return iter(())

    def law(self, values: Numbers) -> Law | None:
        """The exact law of the first client's output for the input `[d]`; None where it is not known."""
        return None

    def likelihood_ratio(self, first: Vector, second: Vector) -> Ratio:
        """A score of outputs that tells the input `first [d]` from `second [d]`.

        Any score gives a valid lower bound, and the likelihood ratio the largest. Where no law is known, the score is
        where the estimate lies between the two inputs.
        """
        laws = self.law(first), self.law(second)
        if laws[0] is None or laws[1] is None:
            return likelihood.linear(self, first.astype(np.float64), second.astype(np.float64))
        return likelihood.of_laws(laws[0], laws[1])

    def worst_pair(self, values: int) -> tuple[Float32s, Float32s]:
        """Two vectors of the domain that are as far apart as it allows."""
        return self.domain.opposite(values)

    def reach(self, values: int, *, limit: float | None = None) -> Reach | None:
        """What one client can say with d values, or None where that is not known.

        `limit` is the server's own bound on plain values.
        """
        check_count("values", values)
        if self.clients is not None:
            raise InvalidInput("one client has one set of parameters: ask for the reach of its own mechanism")
        return self._extent(values, limit)

    def _extent(self, values: int, limit: float | None) -> Reach | None:
        return None


def values_affected(adjacency: Adjacency, values: int) -> int:
    """How many of a vector's values differ between the two worlds: one coordinate, or all of them.

    A numeric mechanism sees a vector, not records: a change of one record may move every value of the vector, so the
    client's guarantee is also the record's.
    """
    count = check_count("values", values)
    adjacency = as_adjacency(adjacency)
    if adjacency is Adjacency.LABEL:
        raise InvalidInput(
            "a numeric mechanism does not see labels: ask for the client, record or coordinate adjacency"
        )
    return 1 if adjacency is Adjacency.COORDINATE else count


def _unproven_noise(
    self: Mechanism, adjacency: Adjacency = Adjacency.CLIENT, *, values: int = 1, client: int = 0
) -> Guarantee:
    return unproven(adjacency, f"{type(self).__name__} has noise of its own, and no guarantee of its own")


def unproven(adjacency: Adjacency, why: str) -> Guarantee:
    """The guarantee of a release without a proof."""
    return Guarantee(SERVER, adjacency, Infinite(why), basis="none")


def check_delta(delta: float) -> float:
    """A delta strictly between 0 and 1."""
    if isinstance(delta, bool) or not isinstance(delta, (int, float)) or not 0 < delta < 1:
        raise InvalidInput(f"delta must be a number in (0, 1), got {delta!r}")
    return float(delta)
