"""What leaves an app with a privacy mod: one parcel of bytes, and models as the vectors that mechanisms take."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.flower import bundles, require
from sordino.mechanisms.interface import Mechanism
from sordino.privacy.guarantee import Release, pack, to_json, unpack
from sordino.wire.codec import Form, Layout, canonical, read_header

require()

from flwr.app import Array, ArrayRecord, RecordDict  # noqa: E402 (after what says that it is missing)

Sends = Literal["update", "weights"]

RECORD = ARRAY = "sordino"  #: under which name the bytes lie in a reply
WEIGHT = "num-examples"  #: what Flower's strategies weigh by, unless they are told otherwise
FAILED_PRECONDITION = 6  #: Flower's code for a mod that will not go on
MOST_TERMS = 64  #: releases that one reply may state
_PARCEL = Layout(b"SM", "a reply of a client's privacy mod", blobs=1, version=3)
_HEADER: dict[str, Form] = {"mechanism": str, "metrics": dict, "sends": str, "terms": [dict]}


@dataclass(frozen=True)
class Parcel:
    """All that leaves a client in one reply: the mechanism's report (none of an evaluation) and metrics by name."""

    body: bytes = b""
    mechanism: str = ""  #: its fingerprint
    sends: Sends = "update"
    metrics: Mapping[str, float] = field(default_factory=dict)  #: unprotected
    terms: tuple[Release, ...] = ()  #: what its releases guarantee, where the owner agreed to tell that

    def stating(self, releases: Iterable[Release]) -> Parcel:
        """The same with what its releases guarantee: what the owner calls the data is left out."""
        return replace(self, terms=tuple(replace(release, dataset=RECORD) for release in releases))

    def encode(self) -> bytes:
        """The bytes that are recorded and sent."""
        terms = [pack(release) for release in self.terms]
        header = {"mechanism": self.mechanism, "metrics": self.metrics, "sends": self.sends, "terms": terms}
        return _PARCEL.pack(blobs=[canonical(header)], rest=self.body)

    @classmethod
    def decode(cls, raw: bytes) -> Parcel:
        """The parcel that `encode` wrote; anything else is refused."""
        _, _, (text,), body = _PARCEL.unpack(raw)
        header = read_header(text, "a reply", _HEADER)
        if header["sends"] not in ("update", "weights") or not all(map(is_number, header["metrics"].values())):
            raise InvalidInput("the header of a reply is damaged")
        if len(header["terms"]) > MOST_TERMS:
            raise InvalidInput(f"a reply states {len(header['terms'])} releases: {MOST_TERMS} are the most")
        terms = tuple(unpack(Release, each) for each in header["terms"])
        return cls(bytes(body), header["mechanism"], header["sends"], header["metrics"], terms)

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

    def __init__(self, arrays: ArrayRecord, name: str = "arrays") -> None:
        self.name = name  #: of their record in the message
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
    def arrays(self) -> Mapping[str, NDArray[np.generic]]:
        """All arrays of the message, as they came."""
        return self._all

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


def only_arrays(content: RecordDict, whose: str) -> ArrayRecord:
    """The one record of arrays in a message."""
    records = content.array_records
    if len(records) != 1:
        raise InvalidInput(f"{whose} must hold one ArrayRecord, this one has {len(records)}")
    return next(iter(records.values()))


def is_number(value: object) -> TypeGuard[float]:
    """Whether a metric is a finite number that fits a reply."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 2**63 and math.isfinite(value)


def require_sends(sends: str) -> None:
    """Refuse what is neither update nor weights."""
    if sends not in ("update", "weights"):
        raise InvalidInput(f'a client sends its "update" or its "weights", got {sends!r}')


__all__ = [
    "FAILED_PRECONDITION", "MOST_TERMS", "RECORD", "WEIGHT", "ModelArrays", "Parcel", "Sends", "fingerprint",
    "is_number", "only_arrays", "require_sends",
]  # fmt: skip
