"""What every privacy mod of a Flower app does: nothing leaves but what the node's ledger has a line for.

Of a reply only what a subclass releases leaves, and metrics that are named, as releases without protection. The ledger
is asked for all of them before the app is called, and records all, metrics that the reply lacks too: who sees that one
is missing learns that the app failed. Errors leave without their text, which may quote data.

A mod of a single function (`@app.train(mods=[...])`) sees no other function's replies, so that evaluation metrics would
leave beside it. Flower has no place where a mod could notice: it is not called. Therefore importing this module puts a
check in front of `ClientApp.__call__`. It concerns apps with a privacy mod only, and lets those answer in which that
mod is the first of every function, as the first of `ClientApp(mods=[...])` is.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

from sordino.errors import STOPPING, BudgetExceeded, ConsentMissing, InvalidInput, ReportCompacted, SordinoError
from sordino.flower import require
from sordino.flower.ledger_place import FEDERATION, ledger_of
from sordino.flower.parcel import FAILED_PRECONDITION, MOST_TERMS, ModelArrays, Parcel, is_number, only_arrays
from sordino.privacy.guarantee import SERVER, Adjacency, Derived, Destination, Guarantee, Infinite, Release
from sordino.privacy.ledger import Ledger, ReportKey, Standing, admit_all

require()

from flwr.app import Context, Error, Message, MessageType, RecordDict  # noqa: E402 (after what says it is missing)
from flwr.clientapp import ClientApp  # noqa: E402

Where = str | Path  #: the path of a ledger, or of a folder with one for each node (`ledger_place`)
Next = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Next], Message]

TERMS = "privacy statement"  #: the consent to tell the server what a release guarantees
NOT_EVERYWHERE = (
    "a privacy mod must be the first of every function of the app, and the only one of its kind: name it first in "
    "ClientApp(mods=[...]). In @app.train(mods=[...]) alone it would not see what evaluate and query send, and a mod "
    "before it could add to its replies"
)
log = logging.getLogger("sordino.flower")


@dataclass(frozen=True)
class PrivacyMod(ABC):
    """A mod with a ledger; subclasses say what a reply to `train` releases."""

    ledger: Where
    dataset: str
    metrics: frozenset[str]

    def __post_init__(self) -> None:
        if not isinstance(self.ledger, (str, Path)):
            raise InvalidInput(f"ledger is a path, got {self.ledger!r}")

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Answer a message of the server: randomised, recorded, or not at all."""
        category = message.metadata.message_type.split(".")[0]
        try:
            if category == MessageType.TRAIN:
                content = self._trained(message, context, call_next)
            elif category == MessageType.EVALUATE:
                content = self._evaluated(message, context, call_next)
            else:
                raise InvalidInput(
                    f"replies to {category!r} have no protection: only train and evaluate are let through"
                )
        except SordinoError as error:
            log.error("nothing was sent in reply to %s: %s", message.metadata.message_type, error)
            return declined(message, error)
        except Exception:  # Flower would send its text, which nobody has looked through
            log.exception("nothing was sent in reply to %s", message.metadata.message_type)
            return declined(message)
        return Message(content, reply_to=message)

    # --- what subclasses say

    @abstractmethod
    def release(self, key: ReportKey, values: int) -> Release:
        """What a reply to `train` with so many real numbers tells of the node's records."""

    @abstractmethod
    def draw(self, message: Message, context: Context, call_next: Next, model: ModelArrays) -> Callable[[], Parcel]:
        """Let the app train, then say how to draw the parcel that leaves."""

    @abstractmethod
    def content(self, parcel: Parcel, model: ModelArrays | None) -> RecordDict:
        """A reply's content, made of the parcel and of the model as the server sent it (to `train`), and nothing else.

        `model` is a copy: what the app does to the message in the meantime is not sent.
        """

    # --- replies

    def _trained(self, message: Message, context: Context, call_next: Next) -> RecordDict:
        arrays = only_arrays(message.content, "a message to train")
        model = ModelArrays(arrays, next(iter(message.content.array_records)))
        key = self._key(message, context)
        releases = [self.release(key, model.values), *self._metric_releases(key)]
        parcel = self._released(key, context, releases, lambda: self.draw(message, context, call_next, model))
        return self.content(parcel, model)

    def _evaluated(self, message: Message, context: Context, call_next: Next) -> RecordDict:
        """Only metrics that are named leave; where none is, nothing is recorded."""

        def answer() -> Callable[[], Parcel]:
            metrics = self.allowed(reply_of(message, context, call_next))
            return lambda: Parcel(metrics=metrics)

        if not self.metrics:
            return self.content(answer()(), None)
        key = self._key(message, context)
        return self.content(self._released(key, context, self._metric_releases(key), answer), None)

    def _released(
        self, key: ReportKey, context: Context, releases: Sequence[Release], answer: Callable[[], Callable[[], Parcel]]
    ) -> Parcel:
        """The parcel for this key: the recorded one, or else a new one, if the ledger lets all its releases go.

        The ledger is asked before `answer` calls the app. All named metrics are in `releases`, whether the app's reply
        has them or not: that one is missing tells that the app failed.
        """
        with self._open(context) as ledger:
            stored = ledger.replay(key)
            if stored is not None:  # the same question gets the same answer, and nothing is computed for it
                return Parcel.decode(stored)
            standings: Mapping[str, Standing] = ledger.charged(self.dataset)
            for release in releases:
                standings = admit_all(standings, release, Destination(key.federation))
        drawn = answer()
        with self._open(context) as ledger:
            stated = self._states(ledger)
            return Parcel.decode(ledger.release_once(key, lambda: self._recorded(key, drawn(), releases, stated)))

    def allowed(self, reply: Message | None) -> dict[str, float]:
        """Of a reply's metrics those that are named; a value that is no finite number is left out."""
        try:
            records = [] if reply is None else list(reply.content.metric_records.values())
            values = [pair for record in records for pair in record.items()]
        except Exception as error:  # what is no reply must look as one without metrics does
            log.error("the reply says no metrics: %s", error)
            return {}
        return {name: value for name, value in values if name in self.metrics and is_number(value)}

    # --- the account

    def _states(self, ledger: Ledger) -> bool:
        """Whether the owner agreed to tell the server what releases guarantee."""
        return TERMS in ledger.standing(self.dataset).consents.unproven

    def _recorded(
        self, key: ReportKey, parcel: Parcel, releases: Sequence[Release], stated: bool
    ) -> tuple[Sequence[Release], bytes]:
        """All releases of a parcel, and its bytes: with what they guarantee, where that is `stated`."""
        if not stated:
            return releases, parcel.encode()
        derived = Derived(tuple(release.id for release in releases))
        terms = Release(f"{name_of(key)}/{TERMS}", self.dataset, TERMS, (), composition=derived)
        return [*releases, terms], parcel.stating(releases).encode()

    def _metric_releases(self, key: ReportKey) -> list[Release]:
        """Each metric that may leave has its line: nothing protects it, nor whether it is there."""
        losses = {f"metric {name}": Infinite(f"the metric {name} leaves as it is") for name in sorted(self.metrics)}
        return [
            Release(f"{name_of(key)}/{what}", self.dataset, what, (Guarantee(SERVER, Adjacency.CLIENT, loss, "none"),))
            for what, loss in losses.items()
        ]

    def _key(self, message: Message, context: Context) -> ReportKey:
        """What a reply answers: this message's content, to this node, in this run."""
        run = f"{FEDERATION}{message.metadata.run_id}"
        return ReportKey(self.dataset, run, _round(message), _digest(message, context))

    @contextmanager
    def _open(self, context: Context) -> Iterator[Ledger]:
        with Ledger.open(ledger_of(self.ledger, context.node_config, self.dataset)) as ledger:
            yield ledger


def named_metrics(metrics: Iterable[str]) -> frozenset[str]:
    """Metrics by name; a single text is a slip, and what the ledger cannot write would keep every reply back."""
    if isinstance(metrics, str):
        raise InvalidInput(f"metrics is a list of names: write metrics=[{metrics!r}]")
    names = frozenset(metrics)
    if wrong := [name for name in names if not (isinstance(name, str) and name.strip() == name and name.isprintable())]:
        raise InvalidInput(f"a metric's name is a printable text without outer spaces, got {wrong[0]!r}")
    if "" in names or len(names) >= MOST_TERMS:
        raise InvalidInput(f"metrics names from none to {MOST_TERMS - 1} metrics, none of them '', got {len(names)}")
    return names


def name_of(key: ReportKey) -> str:
    """How releases of a reply are called."""
    return f"{key.federation.replace(' ', '/')}/{key.round}/{str(key.plan_hash)[:16]}"


def reply_of(message: Message, context: Context, call_next: Next) -> Message | None:
    """The app's reply; None where it failed, which is nobody else's business: an error's text may quote data."""
    try:
        reply = call_next(message, context)
        if not reply.has_error():
            return reply
        log.error("the app failed in %s: %s", message.metadata.message_type, reply.error.reason)
    except STOPPING:
        raise
    except BaseException:  # an app that ends its process would leave the server without a reply
        log.exception("the app failed in %s: the server is not told", message.metadata.message_type)
    return None


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


def declined(message: Message, error: SordinoError | None = None) -> Message:
    """What the server is told of a refusal: no figure of the owner's account, and no text of the app's."""
    reasons = {
        BudgetExceeded: "this client's budget allows no more",
        ConsentMissing: "this client's owner has not agreed to such a release",
        ReportCompacted: "this client no longer keeps that reply",
        InvalidInput: "this message or reply is none that the client's privacy mod lets through",
        SordinoError: "this client's ledger is not available",
    }
    why = next((why for kind, why in reasons.items() if isinstance(error, kind)), "this client could not answer")
    return Message(Error(FAILED_PRECONDITION, f"declined: {why}"), reply_to=message)


# --- apps in which a mod would not see everything ---------------------------------------------------------------------


def mods_of(app: ClientApp) -> list[PrivacyMod]:
    """The privacy mods of an app, each once."""
    found = (mod for function in _functions(app) for mod in _chain(function))
    return list({id(mod): mod for mod in (*app._mods, *found) if isinstance(mod, PrivacyMod)}.values())


def is_first(mod: PrivacyMod, app: ClientApp) -> bool:
    """Whether every reply of the app passes this mod, and nothing after it."""
    return all(next(_chain(function), None) is mod for function in _functions(app))


def _functions(app: ClientApp) -> list[Callable[..., object]]:
    """All functions that may answer: those of the message API, or the one of the older API."""
    return [*app._registered_funcs.values(), *([] if app._call is None else [app._call])]


def _chain(function: Callable[..., object]) -> Iterator[object]:
    """The mods that Flower's `make_ffn` wrapped around a function, that which sees replies last first."""
    while hasattr(function, "__code__"):
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        inside = {name: cell.cell_contents for name, cell in cells}
        if not {"_mod", "_ffn"} <= inside.keys():
            return
        yield inside["_mod"]
        function = inside["_ffn"]


def _guarded(call: Callable[[ClientApp, Message, Context], Message]) -> Callable[..., Message]:
    @wraps(call)
    def guarded(app: ClientApp, message: Message, context: Context) -> Message:
        mods = mods_of(app)
        if not mods:
            return call(app, message, context)
        if len(mods) > 1 or not is_first(mods[0], app):
            log.error("nothing was sent in reply to %s: %s", message.metadata.message_type, NOT_EVERYWHERE)
            return declined(message, InvalidInput(NOT_EVERYWHERE))
        try:
            return call(app, message, context)
        except Exception:  # of the app's lifespan, say; Flower would send its text
            log.exception("nothing was sent in reply to %s", message.metadata.message_type)
            return declined(message)

    return guarded


ClientApp.__call__ = _guarded(ClientApp.__call__)  # type: ignore[method-assign]

__all__ = ["NOT_EVERYWHERE", "TERMS", "Mod", "Next", "PrivacyMod", "Where", "name_of", "named_metrics", "reply_of"]
