"""What every mechanism is: a domain, `randomize`, `estimate`, exact bias and variance, a guarantee, an encoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.errors import InvalidInput
from sordino.mechanisms import likelihood
from sordino.mechanisms import output as outputs
from sordino.mechanisms.domain import Domain, as_array, check_finite
from sordino.mechanisms.integers import MIN_EPSILON
from sordino.mechanisms.laws import Law
from sordino.mechanisms.likelihood import Ratio, Vector
from sordino.mechanisms.output import Output
from sordino.mechanisms.reach import Reach
from sordino.privacy.guarantee import SERVER, Adjacency, Claim, Guarantee, Infinite, as_adjacency, check_count
from sordino.randomness import Randomness, Rows

if TYPE_CHECKING:
    from sordino.mechanisms.cases import Case, Specimen
    from sordino.mechanisms.tuning import Ranges, Tuning

Floats = NDArray[np.floating[Any]]
Float64s = NDArray[np.float64]

TILE = 2**16  #: random words used at a time: the buffers of one tile stay in the processor's cache


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

    @property
    @abstractmethod
    def clients(self) -> int | None:
        """The number of clients the parameters describe; None when one set of parameters serves any number."""

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
        return None

    def __repr__(self) -> str:
        who = "any number of clients" if self.clients is None else f"{self.clients} clients"
        return f"<{type(self).__name__} on {type(self.domain).__name__} for {who}>"

    def encode(self, output: Output) -> list[bytes]:
        """One compact byte string per client."""
        return outputs.encode(output)

    @abstractmethod
    def decode(self, reports: Sequence[bytes], values: int) -> Output:
        """The outputs that `encode` wrote; anything outside the output set is refused."""

    def page_settings(self, values: int) -> dict[str, Any]:
        """The whole numbers that a page needs, as docs/web-protocol.md describes them; the domain is sent beside it."""
        raise InvalidInput(f"the mechanism {self.name} has no form in pages")

    def shuffled_claim(self, clients: int, *, client: int = 0) -> Claim | None:
        """What the paper claims where the single parameters of n clients are shuffled; None where it does not."""
        return None

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

    def law(self, values: NDArray[Any]) -> Law | None:
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

    def worst_pair(self, values: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
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


def per_client(name: str, given: ArrayLike, *, low: float, high: float) -> Float64s:
    """A scalar or one number per client, checked against (low, high)."""
    array = np.atleast_1d(as_array(name, given))
    if array.dtype.kind not in "fiu" or array.ndim != 1 or array.size == 0:
        raise InvalidInput(f"{name} must be a number or one number per client, got {given!r}")
    array = array.astype(np.float64)
    if not ((array > low) & (array < high)).all():
        raise InvalidInput(f"{name} must lie in ({low:g}, {high:g}) for every client, got {given!r}")
    array.setflags(write=False)
    return array


def client_index(parameters: int, client: int) -> int:
    """The row of a client's parameters: its own, or the one for all."""
    if parameters == 1:
        return 0
    if not 0 <= client < parameters:
        raise InvalidInput(f"there are parameters for clients 0 to {parameters - 1}, not for {client}")
    return client


def as_matrix(values: ArrayLike) -> Floats:
    """`[K, d]` floats from an array, a tensor or nested lists; refused unless real, finite and not empty."""
    array = as_shaped(values)
    check_finite(array)
    return array


def as_shaped(values: ArrayLike) -> Floats:
    """As `as_matrix`, for callers that find NaN and infinity themselves (`Box.normalise` does)."""
    if hasattr(values, "detach"):  # a torch tensor, without importing torch
        try:
            values = values.detach().cpu().numpy()
        except TypeError as error:  # numpy has no bfloat16
            raise InvalidInput(f"this tensor has no counterpart in numpy ({error}): convert it with .float()") from None
    array = as_array("values", values)
    if array.dtype.kind != "f":
        raise InvalidInput(
            f"values must be floating-point numbers, got {array.dtype}: convert them, e.g. with .astype('float32')"
        )
    if array.dtype.itemsize > 8:
        with np.errstate(over="ignore"):
            array = array.astype(np.float64)
    if array.ndim == 1:
        array = array[None, :]
    if array.ndim != 2 or array.size == 0:
        raise InvalidInput(f"values must be one vector [d] or a cohort [K, d], not empty; got shape {array.shape}")
    return array


def check_cohort(mechanism: Mechanism, rows: int, randomness: Randomness | None = None) -> None:
    """Refuse a cohort whose rows do not match the mechanism's parameters or the randomness."""
    if rows < 1:
        raise InvalidInput("there are no clients: give at least one row of values, or one report")
    if mechanism.clients not in (None, rows):
        raise InvalidInput(f"the mechanism holds parameters for {mechanism.clients} clients, the values are for {rows}")
    if randomness is not None and randomness.clients != rows:
        raise InvalidInput(f"the randomness is for {randomness.clients} clients, the values are for {rows}")


def check_delta(delta: float) -> float:
    """A delta strictly between 0 and 1."""
    if isinstance(delta, bool) or not isinstance(delta, (int, float)) or not 0 < delta < 1:
        raise InvalidInput(f"delta must be a number in (0, 1), got {delta!r}")
    return float(delta)


def row_parameters(parameters: NDArray[Any], rows: int) -> NDArray[Any]:
    """One parameter per row, repeated when there is one for all."""
    return np.broadcast_to(parameters, (rows,)) if parameters.size == 1 else parameters


def tile_shape(clients: int, values: int, words_per_value: int = 1) -> tuple[int, int]:
    """Rows and columns of the largest tile that needs at most `TILE` random words."""
    width = 1 << (TILE // words_per_value).bit_length() - 1
    return min(clients, max(1, width // values)), min(values, width)


def tiles(parameters: NDArray[Any], values: int, words_per_value: int = 1) -> Iterator[tuple[Rows, slice]]:
    """Rows of equal parameter and ranges of columns that together need at most `TILE` random words."""
    height, width = tile_shape(parameters.size, values, words_per_value)
    for parameter in np.unique(parameters):
        same = np.flatnonzero(parameters == parameter)
        for start in range(0, same.size, height):
            for first in range(0, values, width):
                yield same[start : start + height], slice(first, min(first + width, values))


def tile_of(values: Floats, rows: Rows, cols: slice) -> Floats:
    """A tile of the values; a view where the rows are consecutive."""
    if rows[-1] - rows[0] + 1 == rows.size:
        return values[rows[0] : rows[-1] + 1, cols]
    return values[rows, cols]


def store_tile(out: NDArray[Any], rows: Rows, cols: slice, tile: NDArray[Any]) -> None:
    """Write a tile; by slices where the rows are consecutive, which is several times faster."""
    if rows[-1] - rows[0] + 1 == rows.size:
        out[rows[0] : rows[-1] + 1, cols] = tile
    else:
        out[rows, cols] = tile
