"""A mechanism and a ledger for a Flower app that knows nothing of either: one line at the clients, one at the server.

    app = ClientApp(mods=[local_privacy(TwoPoint(1.0, Box(0.0, 0.1)), "budget.db")])           in the client's app
    strategy = decoded(FedAvg(), TwoPoint(1.0, Box(0.0, 0.1)))                                 in the server's app

Of a reply to `train` the mod takes the model, as its change from the arrays that came (or as it is), clips it to the
mechanism's domain, randomises it, writes the release and its bytes into the ledger, and only then lets the bytes go.
Whatever else is in a reply stays at the client: sample counts, losses and other metrics leave only if they are named,
and then as what they are, releases without protection. Arrays that are not of real numbers (counters) do not leave.

The mod is part of the app, and the server hands out the app: this protects in honest apps only (docs/flower-mod.md).
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from sordino.errors import BudgetExceeded, ConsentMissing, InvalidInput, SordinoError
from sordino.flower import bundles, require
from sordino.mechanisms.interface import Mechanism
from sordino.methods.upload import MAX_SAMPLES
from sordino.privacy.guarantee import SERVER, Adjacency, Destination, Guarantee, Infinite, Release, to_json
from sordino.privacy.ledger import Ledger, ReportKey, admit
from sordino.randomness import Keystream
from sordino.wire.codec import Form, Layout, canonical, read_header

require()

from flwr.app import (  # noqa: E402 (after what says that it is missing)
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid  # noqa: E402
from flwr.serverapp.strategy import Strategy  # noqa: E402

Float32s = NDArray[np.float32]
Sends = Literal["update", "weights"]
Where = Ledger | str | Path | Callable[[Context], str | Path]  #: a ledger, its path, or where each node has its own
Next = Callable[[Message, Context], Message]

RECORD = ARRAY = "sordino"  #: under which name the bytes lie in a reply
WEIGHT = "num-examples"  #: what Flower's strategies weigh by, unless they are told otherwise
FAILED_PRECONDITION = 6  #: Flower's code for a mod that will not go on
_PARCEL = Layout(b"SM", "a reply of a client's privacy mod", blobs=1)
_HEADER: dict[str, Form] = {"mechanism": str, "metrics": dict, "sends": str}
_log = logging.getLogger("sordino.flower")


# --- what leaves ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parcel:
    """All that leaves a client in one reply: the mechanism's report (none of an evaluation) and metrics by name."""

    body: bytes = b""
    mechanism: str = ""  #: its fingerprint
    sends: Sends = "update"
    metrics: Mapping[str, float] = field(default_factory=dict)  #: unprotected

    def encode(self) -> bytes:
        """The bytes that are recorded and sent."""
        header = {"mechanism": self.mechanism, "metrics": self.metrics, "sends": self.sends}
        return _PARCEL.pack(blobs=[canonical(header)], rest=self.body)

    @classmethod
    def decode(cls, raw: bytes) -> Parcel:
        """The parcel that `encode` wrote; anything else is refused."""
        _, _, (text,), body = _PARCEL.unpack(raw)
        header = read_header(text, "a reply", _HEADER)
        if header["sends"] not in ("update", "weights") or not all(map(_is_number, header["metrics"].values())):
            raise InvalidInput("the header of a reply is damaged")
        return cls(bytes(body), header["mechanism"], header["sends"], header["metrics"])

    def content(self) -> RecordDict:
        """The content of the reply: one flat array of bytes, and nothing else."""
        return RecordDict({RECORD: bundles.array(self.encode(), ARRAY)})

    @classmethod
    def of(cls, content: RecordDict) -> Parcel:
        """The parcel in a reply's content."""
        if RECORD not in content.array_records:
            raise InvalidInput(
                "a reply was not made by sordino.flower.local_privacy: add it to the mods of the client's app"
            )
        return cls.decode(bundles.array_in(content, RECORD, ARRAY))


def fingerprint(mechanism: Mechanism, values: int) -> str:
    """What both sides must have in common: the guarantee for d values, and what reports can stand for."""
    found = mechanism.reach(values)
    parts = (mechanism.name.encode(), to_json(mechanism.guarantee(values=values)).encode())
    digest = hashlib.sha256(b"\0".join(parts))
    for end in () if found is None else (found.lowest, found.highest):
        digest.update(end.astype("<f8").tobytes())
    return digest.hexdigest()[:32]


# --- models as vectors ------------------------------------------------------------------------------------------------


class ModelArrays:
    """The arrays of a message that hold real numbers, as one vector; counters and the like stay out of it."""

    def __init__(self, arrays: ArrayRecord) -> None:
        self._all = {name: array.numpy() for name, array in arrays.items()}
        self._real = [name for name, array in self._all.items() if array.dtype.kind == "f" and array.size]
        if not self._real:
            raise InvalidInput("the message holds no array of real numbers: there is nothing to randomise")

    def vector(self, record: ArrayRecord | None = None) -> NDArray[np.float64]:
        """These arrays, or others of the same names and shapes, joined."""
        arrays = self._all if record is None else self._checked(record)
        return np.concatenate([arrays[name].astype(np.float64).reshape(-1) for name in self._real])

    def _checked(self, record: ArrayRecord) -> dict[str, NDArray[np.generic]]:
        """A shape or a name that is the app's own would tell something of its data."""
        if list(record.keys()) != list(self._all):
            raise InvalidInput("the reply has other arrays than the message: both must have the same names")
        found = {name: array.numpy() for name, array in record.items()}
        for name in self._real:
            if found[name].shape != self._all[name].shape or found[name].dtype.kind != "f":
                raise InvalidInput(f"the array {name!r} came back with another shape or type than it was sent with")
        return found

    @property
    def values(self) -> int:
        """d."""
        return sum(self._all[name].size for name in self._real)

    def record(self, vector: NDArray[np.float64]) -> ArrayRecord:
        """The vector as arrays of the same names, shapes and types; what is not in it is as it was sent."""
        arrays, first = dict(self._all), 0
        for name in self._real:
            was = self._all[name]
            part = vector[first : first + was.size].reshape(was.shape)
            if name.endswith("running_var"):
                part = np.maximum(part, 0)  # noise can make a variance negative, and nothing computes then
            most = float(np.finfo(was.dtype).max)  # a half-precision model has no room for every estimate
            arrays[name] = np.clip(part, -most, most).astype(was.dtype)
            first += was.size
        return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})

    def counters(self, record: ArrayRecord) -> ArrayRecord:
        """The record with those arrays that are not of real numbers as they were sent: strategies take means of all."""
        still = {name: Array(self._all[name]) for name in record if name in self._all and name not in self._real}
        return ArrayRecord({name: still.get(name, array) for name, array in record.items()})


def _only_arrays(content: RecordDict, whose: str) -> ArrayRecord:
    records = content.array_records
    if len(records) != 1:
        raise InvalidInput(f"{whose} must hold one ArrayRecord, this one has {len(records)}")
    return next(iter(records.values()))


# --- at the client ----------------------------------------------------------------------------------------------------


def local_privacy(
    mechanism: Mechanism,
    ledger: Where,
    *,
    dataset: str = "records",
    metrics: Iterable[str] = (),
    sends: Sends = "update",
) -> Callable[[Message, Context, Next], Message]:
    """A mod for `ClientApp(mods=[...])`; let it be the first of them, so that nothing is added after it.

    `ledger` is the owner's (`sordino ledger budget PATH DATASET --epsilon E` makes one), given as a path, or as a
    function of the node's context where one app serves many nodes. `metrics` names what may leave unprotected: each
    needs the owner's consent as well (`sordino ledger consent PATH DATASET --unproven "metric NAME"`).
    """
    if not isinstance(mechanism, Mechanism) or mechanism.clients is not None:
        raise InvalidInput("local_privacy needs a mechanism with parameters for one client, such as TwoPoint(1.0)")
    if isinstance(metrics, str):
        raise InvalidInput(f"metrics is a list of names: write metrics=[{metrics!r}]")
    _require_sends(sends)
    if not isinstance(ledger, (Ledger, str, Path)) and not callable(ledger):
        raise InvalidInput(f"ledger is a path, a Ledger or a function of the node's context, got {ledger!r}")
    return LocalPrivacy(mechanism, ledger, dataset, frozenset(metrics), sends)


def _require_sends(sends: str) -> None:
    if sends not in ("update", "weights"):
        raise InvalidInput(f'a client sends its "update" or its "weights", got {sends!r}')


@dataclass(frozen=True)
class LocalPrivacy:
    """The mod itself; `local_privacy` makes one."""

    mechanism: Mechanism
    ledger: Where
    dataset: str
    metrics: frozenset[str]
    sends: Sends

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Answer a message of the server: randomised, recorded, or not at all."""
        category = message.metadata.message_type.split(".")[0]
        try:
            if category == MessageType.TRAIN:
                return self._trained(message, context, call_next)
            if category == MessageType.EVALUATE:
                return self._evaluated(message, context, call_next)
            raise InvalidInput(f"replies to {category!r} have no protection: only train and evaluate are let through")
        except SordinoError as error:
            _log.error("nothing was sent in reply to %s: %s", message.metadata.message_type, error)
            return Message(Error(FAILED_PRECONDITION, _declined(error)), reply_to=message)
        except Exception:  # Flower would send its text, which nobody has looked through
            _log.exception("nothing was sent in reply to %s", message.metadata.message_type)
            return Message(Error(FAILED_PRECONDITION, "declined: this client could not answer"), reply_to=message)

    def _trained(self, message: Message, context: Context, call_next: Next) -> Message:
        model = ModelArrays(_only_arrays(message.content, "a message to train"))
        key = self._key(message, context)
        update = self._release(key, model.values)
        with self._open(context) as ledger:
            stored = ledger.replay(key)
            if stored is not None:  # the same question gets the same answer, and nothing is computed for it
                return Message(Parcel.decode(stored).content(), reply_to=message)
            admit(ledger.standing(self.dataset), update, Destination(key.federation))  # before any data is touched
        vector, told = self._answer(message, context, call_next, model)

        def draw() -> tuple[Sequence[Release], bytes]:
            output = self.mechanism.randomize(vector, Keystream.fresh()).output
            made = fingerprint(self.mechanism, model.values)
            parcel = Parcel(self.mechanism.encode(output)[0], made, self.sends, told)
            return (update, *self._metric_releases(update.id, told)), parcel.encode()

        with self._open(context) as ledger:
            return Message(Parcel.decode(ledger.release_once(key, draw)).content(), reply_to=message)

    def _answer(
        self, message: Message, context: Context, call_next: Next, model: ModelArrays
    ) -> tuple[Float32s, dict[str, float]]:
        """The vector to randomise and the metrics that may leave; of training that failed, "no change" and none."""
        after = before = model.vector()
        told: dict[str, float] = {}
        reply = _reply(message, context, call_next)
        if reply is not None:
            after = model.vector(_only_arrays(reply.content, "a reply to train"))
            told = self._allowed(reply.content)
            if not np.isfinite(after).all():
                _log.error("training gave values that are not finite: the report says 'no change'")
                after, told = before, {}
        vector = after - before if self.sends == "update" else after
        largest = float(np.finfo(np.float32).max)
        return np.clip(vector, -largest, largest).astype(np.float32), told

    def _evaluated(self, message: Message, context: Context, call_next: Next) -> Message:
        """Only metrics that are named leave; where none does, nothing is recorded."""
        reply = _reply(message, context, call_next)
        told = {} if reply is None else self._allowed(reply.content)
        if not told:
            return Message(Parcel().content(), reply_to=message)
        key = self._key(message, context)
        with self._open(context) as ledger:
            stored = ledger.release_once(
                key, lambda: (self._metric_releases(_name(key), told), Parcel(metrics=told).encode())
            )
        return Message(Parcel.decode(stored).content(), reply_to=message)

    def _allowed(self, content: RecordDict) -> dict[str, float]:
        """Of a reply's metrics those that are named; a value that is no finite number is left out."""
        said = ((name, value) for record in content.metric_records.values() for name, value in record.items())
        named = {name: value for name, value in said if name in self.metrics and not isinstance(value, list)}
        return {name: value for name, value in named.items() if _is_number(value)}

    # --- the account

    def _release(self, key: ReportKey, values: int) -> Release:
        what = "model update" if self.sends == "update" else "model weights"
        guarantees = tuple(
            self.mechanism.guarantee(adjacency, values=values) for adjacency in (Adjacency.CLIENT, Adjacency.COORDINATE)
        )
        claim = self.mechanism.claim(values=values)
        return Release(f"{_name(key)}/{what}", self.dataset, what, guarantees, claim)

    def _metric_releases(self, name: str, told: Iterable[str]) -> list[Release]:
        """Each metric that leaves has its line: nothing protects it."""
        losses = {metric: Infinite(f"the metric {metric} leaves as it is") for metric in told}
        return [
            Release(f"{name}/{m}", self.dataset, f"metric {m}", (Guarantee(SERVER, Adjacency.CLIENT, loss, "none"),))
            for m, loss in losses.items()
        ]

    def _key(self, message: Message, context: Context) -> ReportKey:
        """What a reply answers: this message's content, to this node, in this run."""
        return ReportKey(self.dataset, f"flower {message.metadata.run_id}", _round(message), _digest(message, context))

    @contextmanager
    def _open(self, context: Context) -> Iterator[Ledger]:
        if isinstance(self.ledger, Ledger):
            yield self.ledger
            return
        path = self.ledger(context) if callable(self.ledger) else self.ledger
        with Ledger.open(path) as ledger:
            yield ledger


def _name(key: ReportKey) -> str:
    """How releases of a reply are called."""
    return f"{key.federation.replace(' ', '/')}/{key.round}/{str(key.plan_hash)[:16]}"


def _reply(message: Message, context: Context, call_next: Next) -> Message | None:
    """The app's reply; None where it failed, which is nobody else's business: an error's text may quote data."""
    try:
        reply = call_next(message, context)
    except Exception:
        _log.exception("the app failed in %s: the server is not told", message.metadata.message_type)
        return None
    if reply.has_error():
        _log.error("the app failed in %s: %s", message.metadata.message_type, reply.error.reason)
        return None
    return reply


def _round(message: Message) -> int:
    """The round, as Flower's strategies say it; 0 where they do not."""
    said = [config.get("server-round") for config in message.content.config_records.values()]
    found = next((value for value in (*said, message.metadata.group_id) if str(value).isdecimal()), 0)
    number = int(str(found))
    return number if number < 2**63 else 0


def _digest(message: Message, context: Context) -> bytes:
    """Of everything that the message asks, and of whom."""
    digest = hashlib.sha256(f"{message.metadata.message_type} {context.node_id}".encode())
    for name, arrays in message.content.array_records.items():
        for key, array in arrays.items():
            digest.update(f"\0{name}\0{key}\0{array.dtype}\0{array.shape}\0".encode() + array.data)
    for kind in (message.content.config_records, message.content.metric_records):
        for name, values in kind.items():
            digest.update(repr((name, sorted(values.items(), key=lambda item: item[0]))).encode())
    return digest.digest()


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 2**63 and math.isfinite(value)


def _declined(error: SordinoError) -> str:
    """What the server is told of a refusal: no figure of the owner's account."""
    reasons = {
        BudgetExceeded: "this client's budget allows no more",
        ConsentMissing: "this client's owner has not agreed to such a release",
        InvalidInput: "this message or reply is none that the client's privacy mod lets through",
        SordinoError: "this client's ledger is not available",
    }
    return f"declined: {next(why for kind, why in reasons.items() if isinstance(error, kind))}"


# --- at the server ----------------------------------------------------------------------------------------------------


def decoded(strategy: Strategy, mechanism: Mechanism | Sequence[Mechanism], *, sends: Sends = "update") -> Strategy:
    """The same strategy for clients with `local_privacy`: it sees the models that their reports stand for.

    Clients may have mechanisms of several strengths: give all of them. Every report is checked against its mechanism's
    output set. All clients weigh alike, unless each of them lets the number of its examples leave. `sends` is that of
    the clients' `local_privacy`: were it theirs to choose, a few bits could be read as a whole model.
    """
    given = (mechanism,) if isinstance(mechanism, Mechanism) else tuple(mechanism)
    if not given or not all(isinstance(each, Mechanism) and each.clients is None for each in given):
        raise InvalidInput("decoded needs the mechanisms of the clients: one, or a list, each for one client")
    if not isinstance(strategy, Strategy):
        raise InvalidInput(
            f"decoded wraps a strategy of flwr.serverapp.strategy, such as FedAvg(), got {type(strategy).__name__}"
        )
    _require_sends(sends)
    return DecodingStrategy(strategy, given, sends)


class DecodingStrategy(Strategy):
    """A strategy that never meets an encoded reply; `decoded` makes one."""

    def __init__(self, inner: Strategy, mechanisms: Sequence[Mechanism], sends: Sends = "update") -> None:
        self._inner, self._mechanisms, self._sends = inner, tuple(mechanisms), sends
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
        self._sent = {m.metadata.dst_node_id: _only_arrays(m.content, "a message to train") for m in messages}
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

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does it."""
        return self._inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the strategy does it, with those metrics that all clients let go; None where there are none."""
        found = self._weighed([_read(reply, self._metrics) for reply in replies])
        return self._inner.aggregate_evaluate(server_round, found) or None

    def summary(self) -> None:
        """As the strategy does it."""
        self._inner.summary()

    def __getattr__(self, name: str) -> object:
        found: object = getattr(self.__dict__["_inner"], name)
        return found

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


__all__ = ["DecodingStrategy", "LocalPrivacy", "Parcel", "decoded", "fingerprint", "local_privacy"]
