"""Who holds which examples: splits of one data set among simulated clients.

A split is a list of index arrays, one per client, disjoint and in ascending order. The same seed gives the same split
on every machine and with every version of numpy: all choices are whole numbers drawn exactly uniformly from the
project's own keystream. No client is left with fewer than `at_least` examples (1 unless told otherwise).
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.randomness import Keystream, Purpose

Indices = NDArray[np.int64]

MAX_CLIENTS = 10**7
BETA_RANGE = (1e-6, 1e6)
BETA_DENOMINATOR = 10**6
_NO_ROWS: Indices = np.zeros(0, np.int64)
UNUSED = -1  # the owner of an example that no client holds


class Partition(Sequence[Indices]):
    """A split in two arrays, however many clients there are: all positions one after the other, and where each ends."""

    def __init__(self, parts: Iterable[Indices]) -> None:
        found = list(parts)
        self._edges = np.concatenate([[0], np.cumsum([len(part) for part in found])]).astype(np.int64)
        self._positions = np.concatenate(found).astype(np.int64) if found else np.zeros(0, np.int64)

    @overload
    def __getitem__(self, client: int) -> Indices: ...

    @overload
    def __getitem__(self, client: slice) -> Partition: ...

    def __getitem__(self, client: int | slice) -> Indices | Partition:
        if isinstance(client, slice):
            return Partition(self[k] for k in range(*client.indices(len(self))))
        k = range(len(self))[client]
        return self._positions[self._edges[k] : self._edges[k + 1]]

    def __len__(self) -> int:
        return len(self._edges) - 1

    @property
    def sizes(self) -> list[int]:
        """Number of examples of each client."""
        return [int(size) for size in np.diff(self._edges)]


class _Use(IntEnum):
    """Every kind of choice reads a stream of its own, so that one never repeats another."""

    ORDER = 0
    URN = 1
    FILL = 2
    DEAL = 3
    VALIDATION = 4


class _Draws:
    """Exactly uniform draws from one stream of the simulation's keystream."""

    BLOCK = 4096

    def __init__(self, seed: int, use: _Use, client: int = 0) -> None:
        self._stream = Keystream.simulation(seed, [client], 0)
        self._use = use
        self._position = 0
        self._numbers = self._each()

    def order(self, count: int) -> Indices:
        """A uniformly random order of 0 .. count-1: 64-bit keys sorted, drawn again in the rare case of equal ones."""
        if count == 0:
            return np.zeros(0, np.int64)
        while True:
            keys = self._take(count)
            order = np.argsort(keys)
            ranked = keys[order]
            if not (ranked[1:] == ranked[:-1]).any():
                return order.astype(np.int64)

    def below(self, limit: int) -> int:
        """A whole number from 0 to limit-1 (Lemire's method: the few words that would favour some are redrawn)."""
        product = next(self._numbers) * limit
        while product & (2**64 - 1) < limit and product & (2**64 - 1) < 2**64 % limit:
            product = next(self._numbers) * limit
        return product >> 64

    def _each(self) -> Iterator[int]:
        while True:
            yield from self._take(self.BLOCK).tolist()

    def _take(self, count: int) -> NDArray[np.uint64]:
        words = self._stream.words(np.zeros(1, np.intp), Purpose.SPLIT, self._use, self._position, 2 * count)
        self._position += -(-2 * count // 4) * 4
        return np.ascontiguousarray(words[0]).view("<u8")


# --- the splits -------------------------------------------------------------------------------------------------------


def iid(examples: int, clients: int, seed: int, *, at_least: int = 1) -> list[Indices]:
    """All examples dealt at random, as evenly as possible: client sizes differ by one at most."""
    sizes = np.full(clients, examples // clients)
    sizes[: examples % clients] += 1
    return by_sizes(examples, sizes.tolist(), seed, at_least=at_least)


def by_sizes(examples: int, sizes: Sequence[int], seed: int, *, at_least: int = 1) -> list[Indices]:
    """As many examples for each client as its size says, chosen at random; what is left over belongs to nobody."""
    total, least = sum(sizes), min(sizes)
    if total > examples:
        raise InvalidInput(f"the sizes add up to {total:,}, but there are {examples:,} examples: make them smaller")
    if least < at_least:
        raise InvalidInput(
            f"client {sizes.index(least)} of {len(sizes):,} would get {least} of {examples:,} examples, at least "
            f"{at_least} are asked for: take fewer clients or set at_least={least}"
        )
    owner = np.full(examples, UNUSED, np.int64)
    owner[_Draws(seed, _Use.ORDER).order(examples)[:total]] = np.repeat(np.arange(len(sizes)), sizes)
    return _parts(owner, len(sizes))


def dirichlet(labels: Indices, clients: int, beta: float, seed: int, *, at_least: int = 1) -> list[Indices]:
    """Label skew: for every class, clients' shares of it are Dirichlet(beta, ..., beta); each example draws its client.

    Small beta gives a class to few clients, large beta nearly the same mixture to all. Drawn as Pólya's urn, which has
    exactly this distribution and needs whole numbers only; beta is taken as the nearest fraction with a denominator of
    at most a million. Clients with fewer than `at_least` examples are then given some, one by one, from whoever holds
    most at that moment.
    """
    if labels.size < clients * at_least:
        raise InvalidInput(
            f"{clients:,} clients with at least {at_least} examples each need {clients * at_least:,}, there are "
            f"{labels.size:,}: take fewer clients, or at_least=0 if clients may be empty"
        )
    strength = Fraction(beta).limit_denominator(BETA_DENOMINATOR)
    draws = _Draws(seed, _Use.URN)
    owner = np.empty(labels.size, np.int64)
    for kind in np.unique(labels):
        rows = np.flatnonzero(labels == kind)
        owner[rows] = _urn(rows.size, clients, strength, draws)
    _fill(owner, clients, at_least, _Draws(seed, _Use.FILL))
    return _parts(owner, clients)


def shards(labels: Indices, clients: int, labels_per_client: int, seed: int) -> list[Indices]:
    """All examples cut into shards of one label each; every client is dealt `labels_per_client` shards at random.

    So a client holds that many labels at most, and fewer where it is dealt two shards of one label. Larger classes are
    cut into more shards, so that the largest shard is as small as can be. (McMahan et al. 2017 cut the sorted data
    evenly, where a shard may straddle two labels.)
    """
    kinds, sizes = np.unique(labels, return_counts=True)
    total = clients * labels_per_client
    if not kinds.size <= total <= labels.size:
        raise InvalidInput(
            f"{clients:,} clients with {labels_per_client} labels each need {total:,} shards; {kinds.size} labels in "
            f"{labels.size:,} examples allow {kinds.size} to {labels.size:,}: change the clients or their labels"
        )
    order = _Draws(seed, _Use.ORDER).order(labels.size)
    client_of_shard = _Draws(seed, _Use.DEAL).order(total) // labels_per_client
    owner = np.empty(labels.size, np.int64)
    first = 0
    for kind, size, pieces in zip(kinds, sizes.tolist(), _shards_of(sizes.tolist(), total), strict=True):
        rows = order[labels[order] == kind]
        owner[rows] = client_of_shard[first + np.arange(size) * pieces // size]
        first += pieces
    return _parts(owner, clients)


def from_files(
    paths: Sequence[str | Path], examples: int, *, held_out: Indices = _NO_ROWS, at_least: int = 1
) -> list[Indices]:
    """A split from one file per client: a `.npy` array of indices, or text with one index (from 0) per line.

    Indices are rows of the source. Where some of its rows are held out as test examples, these are dealt to nobody,
    and `examples` counts the others: what comes back are positions among those.
    """
    owner, parts = np.full(examples + held_out.size, UNUSED, np.int64), []
    for client, (path, listed) in enumerate(zip(paths, rows_in(paths), strict=True)):
        rows = _checked_rows(listed, str(path), owner.size)
        taken = rows[owner[rows] != UNUSED]
        if taken.size:
            raise InvalidInput(f"{path}: example {taken[0]} already belongs to {paths[owner[taken[0]]]}")
        owner[rows] = client
        kept = rows[~np.isin(rows, held_out)]
        if kept.size < at_least:
            raise InvalidInput(f"{path}: {kept.size} examples, at least {at_least} are asked for; see at_least")
        parts.append(kept - np.searchsorted(held_out, kept))
    return parts


def by_column(
    values: NDArray[np.str_],
    clients: int | Sequence[str],
    examples: int,
    *,
    held_out: Indices = _NO_ROWS,
    at_least: int = 1,
) -> list[Indices]:
    """A split by the value that each row of the source has in a column: one value, one client.

    `clients` are the values in the order of the clients; or how many values there are, and clients are then in rising
    order of their values: whole numbers as numbers, else as text. Rows that are held out as test examples are dealt to
    nobody; `examples` counts the others, and what comes back are positions among the first so many of those.
    """
    found, first, value_of_row = np.unique(values, return_index=True, return_inverse=True)
    names = _rising(found.tolist(), clients) if isinstance(clients, int) else list(clients)
    numbers = {name: client for client, name in enumerate(names)}
    client_of_value = np.array([numbers.get(value, UNUSED) for value in found.tolist()], np.int64)
    if (others := np.flatnonzero(client_of_value == UNUSED)).size:
        raise InvalidInput(
            f"row {first[others[0]]} (from 0) has {str(found[others[0]])!r}, which is not among the {len(names):,} "
            "clients: add it to them, correct the cell, or leave the row out"
        )
    owner = client_of_value[value_of_row]
    parts = _parts(np.delete(owner, held_out)[:examples], len(names))
    sizes = [part.size for part in parts]
    if min(sizes) < at_least:
        least = sizes.index(min(sizes))
        raise InvalidInput(_too_few(sizes, at_least, names[least], int((owner == least).sum())))
    return parts


def check_dealt(parts: Sequence[Indices], examples: int, clients: int) -> list[Indices]:
    """The parts of any split, in ascending order; refused unless there are as many as clients and all are disjoint."""
    if len(parts) != clients:
        raise InvalidInput(f"the split makes {len(parts)} parts, and declares {clients} clients")
    rows = [_checked_rows(np.asarray(part), f"client {k}", examples) for k, part in enumerate(parts)]
    owners = np.bincount(np.concatenate([_NO_ROWS, *rows]), minlength=examples)
    if (owners > 1).any():
        raise InvalidInput(f"the split deals example {int(owners.argmax())} to several clients: records must be apart")
    return rows


def rows_in(paths: Sequence[str | Path]) -> list[NDArray[np.generic]]:
    """The rows that files name, as they are written there."""
    return [_read_indices(Path(path)) for path in paths]


# --- tuning and reporting ---------------------------------------------------------------------------------------------


def validation_split(indices: Indices, fraction: float, seed: int, *, client: int = 0) -> tuple[Indices, Indices]:
    """(training, validation): a random `fraction` of one client's examples set aside for tuning.

    The number set aside is rounded to the nearest whole number, and training keeps at least one example.
    """
    aside = max(0, min(indices.size - 1, math.floor(indices.size * Fraction(fraction) + Fraction(1, 2))))
    order = _Draws(seed, _Use.VALIDATION, client).order(indices.size)
    return np.sort(indices[order[aside:]]), np.sort(indices[order[:aside]])


def label_counts(labels: Indices, parts: Sequence[Indices], classes: int) -> NDArray[np.int64]:
    """How many examples of each class each client holds, `[K, classes]`; for reports of simulations only."""
    client = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    held = labels[np.concatenate([*parts, np.zeros(0, np.int64)])]
    return np.bincount(client * classes + held, minlength=len(parts) * classes).reshape(len(parts), classes)


# --- how they are made ------------------------------------------------------------------------------------------------


def _parts(owner: Indices, clients: int) -> list[Indices]:
    """The examples of each client in ascending order, from the owner of each example."""
    order = np.argsort(owner, kind="stable").astype(np.int64)
    edges = np.searchsorted(owner[order], np.arange(clients + 1))
    return [order[first:last].copy() for first, last in pairwise(edges.tolist())]


def _rising(values: Sequence[str], clients: int) -> list[str]:
    """So many different values in rising order; refused if there are more or fewer."""
    if len(values) != clients:
        shown = ", ".join(map(repr, values[:5])) + (", ..." if len(values) > 5 else "")
        raise InvalidInput(
            f"{len(values):,} different values ({shown or 'no rows'}) for {clients:,} clients: correct the cells, or "
            f"set clients to {len(values)} or to a list of all names"
        )
    whole = all(re.fullmatch(r"-?[0-9]+", value) for value in values)
    return sorted(values, key=lambda value: (int(value) if whole else 0, value))


def _too_few(sizes: Sequence[int], at_least: int, name: str, rows: int) -> str:
    """Why clients hold too few examples, and what to do; the one of this name, with so many rows, holds fewest."""
    size, few = min(sizes), sum(size < at_least for size in sizes)
    remedy = f"set at_least={size}"
    if not rows:
        cause, remedy = "no row has this value", f"correct the name, leave the client out, or {remedy}"
    elif rows > size:
        cause = f"{rows - size} of its {rows} rows held out for the test or cut off by a limit"
        remedy = f"hold out fewer, raise the limit, or {remedy}"
    else:
        cause, remedy = "these are all of its rows", f"leave its rows and the client out, or {remedy}"
    return (
        f"{few:,} of {len(sizes):,} clients hold fewer than {at_least} training examples, such as {name!r} with {size} "
        f"({cause}): {remedy}"
    )


def _urn(examples: int, clients: int, beta: Fraction, draws: _Draws) -> list[int]:
    """Pólya's urn: an example goes to a uniform client with weight clients*beta, else where an earlier one went."""
    new, old = beta.numerator, beta.denominator
    fresh = clients * new
    owners: list[int] = []
    for placed in range(examples):
        drawn = draws.below(fresh + placed * old)
        owners.append(drawn // new if drawn < fresh else owners[(drawn - fresh) // old])
    return owners


def _fill(owner: Indices, clients: int, at_least: int, draws: _Draws) -> None:
    """Move examples one at a time from the client that holds most to those that hold fewer than `at_least`."""
    sizes = np.bincount(owner, minlength=clients)
    if sizes.min() >= at_least:
        return
    held = [part.tolist() for part in _parts(owner, clients)]
    richest = [(-size, client) for client, size in enumerate(sizes.tolist())]
    heapq.heapify(richest)
    for poor in np.flatnonzero(sizes < at_least).tolist():
        for _ in range(at_least - int(sizes[poor])):
            size, giver = heapq.heappop(richest)
            mine = held[giver]
            at = draws.below(len(mine))
            mine[at], mine[-1] = mine[-1], mine[at]
            owner[mine.pop()] = poor
            heapq.heappush(richest, (size + 1, giver))


def _shards_of(sizes: Sequence[int], total: int) -> list[int]:
    """How many shards each class is cut into: one, and the rest wherever the shards are largest at that moment."""
    pieces = [1] * len(sizes)
    largest = [(-size / 1, kind) for kind, size in enumerate(sizes)]
    heapq.heapify(largest)
    for _ in range(total - len(sizes)):
        _, kind = largest[0]
        pieces[kind] += 1
        heapq.heapreplace(largest, (-sizes[kind] / pieces[kind], kind))
    return pieces


# --- input ------------------------------------------------------------------------------------------------------------


def _checked_rows(rows: NDArray[np.generic], where: str, examples: int) -> Indices:
    """The rows in ascending order: whole numbers in range, none of them twice."""
    if rows.size == 0:
        return np.zeros(0, np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise InvalidInput(f"{where}: give one list of whole numbers, got shape {rows.shape} of {rows.dtype}")
    found = np.sort(rows.astype(np.int64))
    if found[0] < 0 or found[-1] >= examples:
        wrong = found[0] if found[0] < 0 else found[-1]
        raise InvalidInput(f"{where}: there is no example {wrong}; indices run from 0 to {examples - 1}")
    if (twice := found[1:][found[1:] == found[:-1]]).size:
        raise InvalidInput(f"{where}: example {twice[0]} is listed twice")
    return found


def _read_indices(path: Path) -> NDArray[np.generic]:
    try:
        if path.suffix == ".npy":
            with path.open("rb") as file:
                return np.asarray(np.load(file, allow_pickle=False))
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError, EOFError) as error:
        raise InvalidInput(f"{path}: cannot be read as a list of indices ({error})") from None
    return np.array([_index(path, number, line) for number, line in enumerate(lines, 1) if line.strip()], np.int64)


def _index(path: Path, number: int, line: str) -> int:
    try:
        index = int(line)
    except ValueError:
        raise InvalidInput(f"{path}, line {number}: {line!r} is not a whole number; write one index per line") from None
    if not -(2**63) <= index < 2**63:
        raise InvalidInput(f"{path}, line {number}: there is no example {index}")
    return index
