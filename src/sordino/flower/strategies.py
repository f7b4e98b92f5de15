"""The server's side of privacy mods: strategies that see models instead of reports, and state what a run protects."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sordino.errors import InvalidInput, SordinoError
from sordino.flower import require
from sordino.flower.parcel import (
    FAILED_PRECONDITION,
    RECORD,
    WEIGHT,
    ModelArrays,
    Parcel,
    Sends,
    fingerprint,
    only_arrays,
    require_sends,
)
from sordino.mechanisms.interface import Mechanism
from sordino.methods.upload import MAX_SAMPLES
from sordino.privacy.guarantee import Derived, Guarantee, Infinite, Release
from sordino.privacy.statement import ClientSet, Statement
from sordino.report import statement as words
from sordino.report.caveats import mod_caveats
from sordino.storage.files import write_whole

require()

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.serverapp.strategy import Strategy  # noqa: E402

UNSTATED = "replies without a statement"  #: what a node's releases are called that it says nothing of
LONGEST_NAME = 100  #: letters in the name of a release that a node states


def decoded(strategy: Strategy, mechanism: Mechanism | Sequence[Mechanism], *, sends: Sends = "update") -> Strategy:
    """The same strategy for clients with `local_privacy`: it sees the models that their reports stand for.

    Clients may have mechanisms of several strengths: give all of them. Every report is checked against its mechanism's
    output set. All clients weigh alike, unless each of them lets the number of its examples leave. `sends` is that of
    the clients' `local_privacy`: were it theirs to choose, a few bits could be read as a whole model.
    """
    given = (mechanism,) if isinstance(mechanism, Mechanism) else tuple(mechanism)
    if not given or not all(isinstance(each, Mechanism) and each.clients is None for each in given):
        raise InvalidInput("decoded needs the mechanisms of the clients: one, or a list, each for one client")
    _require_strategy(strategy)
    require_sends(sends)
    return DecodingStrategy(strategy, given, sends)


def _require_strategy(strategy: object) -> None:
    if not isinstance(strategy, Strategy):
        raise InvalidInput(
            f"a strategy of flwr.serverapp.strategy is needed, such as FedAvg(), got {type(strategy).__name__}"
        )


class _Wrapped(Strategy):
    """A strategy that leaves everything to another one."""

    def __init__(self, inner: Strategy) -> None:
        self._inner = inner

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does it."""
        return self._inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As the strategy does it."""
        return self._inner.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does it."""
        return self._inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the strategy does it."""
        return self._inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """As the strategy does it."""
        self._inner.summary()

    def __getattr__(self, name: str) -> object:
        found: object = getattr(self.__dict__["_inner"], name)
        return found


class DecodingStrategy(_Wrapped):
    """A strategy that never meets an encoded reply; `decoded` makes one."""

    def __init__(self, inner: Strategy, mechanisms: Sequence[Mechanism], sends: Sends = "update") -> None:
        super().__init__(inner)
        self._mechanisms, self._sends = tuple(mechanisms), sends
        self._weight = str(getattr(inner, "weighted_by_key", WEIGHT))
        self._sent: dict[int, ArrayRecord] = {}  # node -> what it was sent; most share one record
        self._known = lru_cache(maxsize=8)(self._fingerprints)

    def _fingerprints(self, values: int) -> dict[str, Mechanism]:
        return {fingerprint(mechanism, values): mechanism for mechanism in self._mechanisms}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does it; what is sent is kept, since replies are changes of it."""
        messages = list(self._inner.configure_train(server_round, arrays, config, grid))
        self._sent = {m.metadata.dst_node_id: only_arrays(m.content, "a message to train") for m in messages}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As the strategy does it, with models in the place of reports; a bad report is an error of its node."""
        found = self._weighed([self._model(reply) for reply in replies])
        arrays, metrics = self._inner.aggregate_train(server_round, found)
        if arrays is None or not self._sent:
            return arrays, metrics
        return ModelArrays(next(iter(self._sent.values()))).counters(arrays), metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the strategy does it, with those metrics that all clients let go; None where there are none."""
        found = self._weighed([_read(reply, self._metrics) for reply in replies])
        return self._inner.aggregate_evaluate(server_round, found) or None

    def _model(self, reply: Message) -> Message:
        def content(parcel: Parcel) -> RecordDict:
            sent = self._sent.get(reply.metadata.src_node_id)
            if sent is None:
                raise InvalidInput("a reply from a node that was not asked")
            if parcel.sends != self._sends:
                raise InvalidInput(
                    f"a reply of {parcel.sends!r} where the server expects {self._sends!r}: both must say the same"
                )
            model = ModelArrays(sent)
            mechanism = self._known(model.values).get(parcel.mechanism)
            if mechanism is None:
                raise InvalidInput("the client's mechanism is none of the server's: both must be built alike")
            estimate = mechanism.estimate(mechanism.decode([parcel.body], model.values))[0].astype(np.float64)
            vector = model.vector() + estimate if self._sends == "update" else estimate
            return RecordDict({"arrays": model.record(vector), **self._metrics(parcel)})

        return _read(reply, content)

    def _metrics(self, parcel: Parcel) -> RecordDict:
        """The one record of metrics that strategies expect."""
        weight = parcel.metrics.get(self._weight, 1)
        if not 0 < weight <= MAX_SAMPLES:
            raise InvalidInput(f"a reply names {weight!r} examples: from 1 to {MAX_SAMPLES:,} count")
        return RecordDict({"metrics": MetricRecord(dict(parcel.metrics))})

    def _weighed(self, replies: list[Message]) -> list[Message]:
        """Let all good replies have the same metrics, and a weight: their own where all have one, else alike."""
        good = [next(iter(reply.content.metric_records.values())) for reply in replies if not reply.has_error()]
        common = set.intersection(*(set(record) for record in good)) if good else set()
        for record in good:
            for name in set(record) - common:
                del record[name]
            if self._weight not in common:
                record[self._weight] = 1.0
        return replies


def _read(reply: Message, content: Callable[[Parcel], RecordDict]) -> Message:
    """A reply with what its parcel stands for; one that cannot be read becomes an error, and the others count."""
    if reply.has_error():
        return reply
    again: Any = Message  # with the same metadata, which Flower's own declaration of it leaves out
    try:
        found: Message = again(content=content(Parcel.of(reply.content)), metadata=reply.metadata)
    except SordinoError as error:
        found = again(error=Error(FAILED_PRECONDITION, f"refused: {error}"), metadata=reply.metadata)
    return found


# --- what a run protects ----------------------------------------------------------------------------------------------


def stated(strategy: Strategy, path: str | Path, *, delta: float = 1e-5) -> Strategy:
    """The same strategy, which keeps a privacy statement of the run at `path` (JSON; beside it, the same as `.txt`).

    It holds what nodes say of their own releases: those with owners who agreed to it (`sordino ledger consent PATH
    DATASET --unproven "privacy statement"`). Let it be the outermost: `stated(decoded(...), path)`.
    """
    _require_strategy(strategy)
    return StatingStrategy(strategy, Path(path), delta)


class StatingStrategy(_Wrapped):
    """A strategy that writes down what replies guarantee; `stated` makes one."""

    def __init__(self, inner: Strategy, path: Path, delta: float) -> None:
        super().__init__(inner)
        self._path, self._delta = path, delta
        self._releases: dict[int, Counter[Release]] = {}  # node -> what it stated, and how often
        self._untold: set[int] = set()  # nodes of which something came that states nothing

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As the strategy does it; what replies state is written down first."""
        return self._inner.aggregate_train(server_round, self._noted(replies))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the strategy does it; what replies state is written down first."""
        found = list(replies)
        silent = {id(reply) for reply in found if not reply.has_error() and _carries_nothing(reply.content)}
        self._noted(reply for reply in found if id(reply) not in silent)
        return self._inner.aggregate_evaluate(server_round, found)

    @property
    def statement(self) -> Statement:
        """What all replies so far state together, node by node; a node that left one out has no finite figure."""
        alike: dict[frozenset[tuple[Release, int]], list[int]] = {}
        for node, stated in self._releases.items():
            counted = Counter({**stated, _unstated(stated): 1}) if node in self._untold else stated
            alike.setdefault(frozenset(counted.items()), []).append(node)
        groups = [
            (
                ClientSet(tuple(f"node {node}" for node in sorted(nodes)), len(nodes)),
                sorted(own, key=lambda pair: pair[0].what),
            )
            for own, nodes in alike.items()
        ]
        made = Statement.of_groups(groups, delta=self._delta, title="Privacy statement of a run with privacy mods")
        partly = [f"node {node}" for node in sorted(self._untold & self._releases.keys())]
        return replace(made, caveats=mod_caveats(len(self._untold - self._releases.keys()), partly))

    def _noted(self, replies: Iterable[Message]) -> list[Message]:
        found = list(replies)
        for reply in found:
            if not reply.has_error():
                self._note(reply)
        if not self._releases:
            return found
        statement = self.statement
        write_whole(self._path, json.dumps(words.to_json(statement), indent=1).encode())
        write_whole(self._path.with_suffix(".txt"), words.to_text(statement).encode())
        return found

    def _note(self, reply: Message) -> None:
        """Add what a reply states, or that it states nothing."""
        node = reply.metadata.src_node_id
        terms = [replace(release, id=RECORD) for release in _terms(reply.content)]
        if not terms or not all(map(_is_sound, terms)):  # of a part of what left, nothing can be said
            self._untold.add(node)
            return
        self._releases.setdefault(node, Counter()).update(terms)


def _unstated(stated: Iterable[Release]) -> Release:
    """What a node let go without saying what it guarantees: nothing, in the terms of all that it did state."""
    views = dict.fromkeys((own.adversary, own.adjacency) for release in stated for own in release.guarantees)
    none = Infinite("the node answered without saying what that protects")
    guarantees = tuple(Guarantee(adversary, adjacency, none, "none") for adversary, adjacency in views)
    return Release(RECORD, RECORD, UNSTATED, guarantees)


def _carries_nothing(content: RecordDict) -> bool:
    """Whether a reply to `evaluate` holds no number of the node's: neither metrics nor arrays."""
    try:
        parcel = Parcel.of(content)
    except SordinoError:
        metrics = [pair for record in content.metric_records.values() for pair in record.items()]
        return not content.array_records and not content.config_records and set(metrics) <= {(WEIGHT, 1)}
    return not parcel.body and not parcel.metrics and not parcel.terms


@lru_cache(maxsize=1024)
def _is_sound(release: Release) -> bool:
    """Whether a statement can be made of it: what a node says of itself must not end the run for all others."""
    if isinstance(release.composition, Derived) or not release.what.isprintable() or len(release.what) > LONGEST_NAME:
        return False
    try:
        Statement.of([release])
    except Exception:
        return False
    return True


def _terms(content: RecordDict) -> tuple[Release, ...]:
    """What a reply states of its own releases; nothing where it states none, or what cannot be read."""
    try:
        if RECORD in content.config_records:
            beside = content.config_records[RECORD][RECORD]
            del content[RECORD]
            return Parcel.decode(beside).terms if isinstance(beside, bytes) else ()
        return Parcel.of(content).terms
    except (SordinoError, KeyError):
        return ()


__all__ = ["DecodingStrategy", "StatingStrategy", "decoded", "stated"]
