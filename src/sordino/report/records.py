"""What a run writes down, as frozen values: one `RoundRecord` after each round and one `Result` at its end.

Values are checked where they are made, so that what is on disk is well formed. JSON has no NaN and no infinity: a
measurement that is not a finite number is written as null, an infinite epsilon as the text "infinite".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

from annotated_types import Ge, Le
from pydantic import BaseModel, BeforeValidator, ConfigDict, InstanceOf, JsonValue, ValidationError, create_model

from sordino.errors import InvalidInput

INFINITE = "infinite"  #: how an infinite epsilon is written in JSON

T = TypeVar("T")

# --- what a field may hold -------------------------------------------------------------------------------------------


def _python(value: object) -> Any:
    """Numbers and arrays of numpy and PyTorch as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value


def _measured(value: object) -> object:
    """None where nothing was measured, or where it diverged and is no number any more."""
    number = _python(value)
    return None if isinstance(number, float) and not math.isfinite(number) else number


def _epsilon(value: object) -> object:
    return math.inf if isinstance(value, str) and value == INFINITE else _python(value)


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _table(value: object) -> object:
    """Rows of one length, from nested sequences or an array."""
    rows = _python(value)
    if not isinstance(rows, (list, tuple)):
        return rows
    if len({len(row) for row in rows}) > 1:
        raise ValueError("the rows have different lengths")
    return tuple(tuple(_python(row)) for row in rows)


Count = Annotated[int, BeforeValidator(_python), Ge(0)]
Measurement = Annotated[float | None, BeforeValidator(_measured)]
Share = Annotated[Annotated[float, Ge(0), Le(1)] | None, BeforeValidator(_measured)]
Epsilon = Annotated[Annotated[float, Ge(0)] | None, BeforeValidator(_epsilon)]
Seconds = Annotated[float, BeforeValidator(_measured), Ge(0)]
Truth = Annotated[bool, BeforeValidator(_python)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_tuple)]
Interval = Annotated[tuple[float, float] | None, BeforeValidator(_tuple)]
Table = Annotated[tuple[tuple[Count, ...], ...] | None, BeforeValidator(_table)]


class _Checked:
    """Every field is checked, and made a plain Python value, when the record is made."""

    def __post_init__(self) -> None:
        try:
            checked = self._model().model_validate(vars(self))
        except ValidationError as error:
            found = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}, got {e['input']!r}" for e in error.errors())
            raise InvalidInput("; ".join(found)) from None
        for name, value in checked:
            object.__setattr__(self, name, value)

    @classmethod
    @cache
    def _model(cls) -> type[BaseModel]:
        """A model with the same fields."""
        hints = get_type_hints(cls, include_extras=True)
        fields: dict[str, Any] = {name: (hint, ...) for name, hint in hints.items()}
        return create_model(cls.__name__, __config__=ConfigDict(strict=True), **fields)


# --- records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Simulation(_Checked):
    """What only a simulation can see of a round: no real client would let it out."""

    train_loss: Measurement = None
    failed: Count = 0  #: clients whose training failed and who sent a report of zero
    clipped: Share = None  #: share of values that were clipped to the range
    update_norm: Measurement = None  #: length of a client's update before randomisation, mean over clients
    noise_norm: Measurement = None  #: length to expect of the noise in the average of the reports
    delivery: Measurement = None  #: seconds until the last parameter would be there, by the delays a recipe describes


@dataclass(frozen=True)
class PrivateFigure(_Checked):
    """One figure on records that clients set aside, with the 95 % interval that noise and chance leave."""

    name: str
    value: Measurement  #: None where the noise drowns it
    interval: Interval


def _figures(value: Iterable[object]) -> tuple[object, ...]:
    return tuple(from_json(PrivateFigure, one) if isinstance(one, Mapping) else one for one in value)


@dataclass(frozen=True)
class PrivateScores(_Checked):
    """How good the model is on records that clients set aside, from the noisy counts that they released."""

    figures: Annotated[tuple[InstanceOf[PrivateFigure], ...], BeforeValidator(_figures)]
    records: Measurement  #: how many were counted, with noise: it may even be negative
    noise: Measurement  #: standard deviation of that
    epsilon: Epsilon  #: of one evaluation, proven against the server for one record added or removed
    delta: Share
    asked: Count = 0
    reported: Count = 0
    declined: Count = 0
    refused: Count = 0


def _simulation(value: object) -> object:
    return from_json(Simulation, value) if isinstance(value, Mapping) else value


def _private(value: object) -> object:
    return from_json(PrivateScores, value) if isinstance(value, Mapping) else value


Private = Annotated[InstanceOf[PrivateScores] | None, BeforeValidator(_private)]


@dataclass(frozen=True)
class RoundRecord(_Checked):
    """One round as the coordinator saw it, with the model's quality after it where it was evaluated."""

    round: Annotated[int, BeforeValidator(_python), Ge(1)]
    accuracy: Share = None
    loss: Measurement = None
    validation_accuracy: Share = None
    metric: str = ""  #: what `score` is, where the run is judged by something else than accuracy
    score: Measurement = None  #: on the test set, by that metric
    validation_score: Measurement = None  #: on what clients set aside, by the same metric
    asked: Count = 0
    reported: Count = 0
    declined: Count = 0  #: by the client's own ledger
    refused: Count = 0  #: by the coordinator, as malformed or out of turn
    late: Count = 0
    #: other answers that nobody waited for, by what is wrong with them
    strays: Mapping[str, Count] = field(default_factory=dict)
    restarts: Count = 0  #: of the coordinator within this round, after each of which the same plan went out again
    counted: Truth = True  #: the quorum was met and the model moved
    seconds: Seconds = 0.0
    bytes_up: Count = 0
    bytes_down: Count = 0
    spent_max: Epsilon = None  #: over clients, in the budget's terms
    spent_median: Epsilon = None
    simulation: Annotated[InstanceOf[Simulation] | None, BeforeValidator(_simulation)] = None
    private: Private = None  #: of the model after this round, where clients evaluated it

    @property
    def evaluated(self) -> bool:
        """Whether the model was scored after this round."""
        return self.accuracy is not None or bool(self.metric)


@dataclass(frozen=True)
class ClientBudget(_Checked):
    """One client's mechanism strength, the limit its ledger enforced, and what it came to."""

    client: Count
    epsilon: Epsilon = None  #: the mechanism's; never to be read as a guarantee of the client
    limit: Epsilon = None
    spent: Epsilon = None  #: in the budget's terms
    reports: Count = 0
    declined: Count = 0
    name: str = ""  #: of the member, with its rounds where these are not all; empty where clients have numbers alone


def _budgets(value: Iterable[object]) -> tuple[object, ...]:
    return tuple(from_json(ClientBudget, one) if isinstance(one, Mapping) else one for one in value)


@dataclass(frozen=True)
class Result(_Checked):
    """What a run came to, with everything its page shows that is not told round by round."""

    name: str
    seed: Count
    stopped: str  #: why it stopped, as a sentence
    rounds: Count
    accuracy: Share = None
    loss: Measurement = None
    metric: str = "accuracy"  #: what the run is judged by
    score: Measurement = None  #: by that metric, where it is another one than accuracy
    baseline: Measurement = None  #: that metric's figure of always giving the same answer
    interval: Interval = None  #: its 95 % confidence interval, by resampling the test set
    smaller_is_better: bool = False  #: by that metric
    private: Private = None  #: on records that clients set aside, when they evaluated it last
    test_examples: Count = 0  #: how many the model was scored on; 0 where nobody wrote it down
    confusion: Table = None  #: [true class, predicted class], summed over all models that count
    classes: Texts = ()
    label_counts: Table = None  #: [client, class]; simulation only
    budgets: Annotated[tuple[InstanceOf[ClientBudget], ...], BeforeValidator(_budgets)] = ()
    budget_terms: str | None = None  #: basis, adversary, adjacency and delta, in words
    parameters: Count = 0
    clients: Count = 0
    seconds: Seconds = 0.0
    bytes_up: Count = 0
    bytes_down: Count = 0
    preflight: Texts = ()
    recipe_fingerprint: str = ""
    settings: Annotated[Mapping[str, object], BeforeValidator(plain)] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        width = len(self.classes)
        if self.confusion is not None and (len(self.confusion), *map(len, self.confusion[:1])) != (width, width):
            raise InvalidInput(f"the confusion matrix must be {width} x {width}, one row and column per class")
        if self.label_counts and len(self.label_counts[0]) != width:
            raise InvalidInput(
                f"label_counts must have one column per class ({width}), got {len(self.label_counts[0])}"
            )

    @property
    def figure(self) -> float | None:
        """What the run is judged by: the metric's score, or the accuracy."""
        return self.accuracy if self.score is None and self.metric == "accuracy" else self.score

    @property
    def commonest(self) -> float | None:
        """Accuracy of always giving the commonest answer: the level above which a model knows something."""
        totals = [sum(row) for row in self.confusion or ()]
        return max(totals) / sum(totals) if sum(totals) else None

    @property
    def accuracy_interval(self) -> tuple[float, float] | None:
        """The accuracy's 95 % confidence interval, by Wilson: what another test set of this size might show."""
        examples = self.test_examples or sum(map(sum, self.confusion or ()))
        if not examples or self.accuracy is None:
            return None
        spread = 1.959964**2 / examples
        middle = (self.accuracy + spread / 2) / (1 + spread)
        half = math.sqrt(spread * (self.accuracy * (1 - self.accuracy) + spread / 4)) / (1 + spread)
        return max(0.0, middle - half), min(1.0, middle + half)


# --- JSON ------------------------------------------------------------------------------------------------------------


def plain(value: object) -> JsonValue:
    """The same value in what JSON can say: records as objects, arrays as lists, infinity as text, NaN as null."""
    match _python(value):
        case None | bool() | int() as same:
            return same
        case str() as text:
            return str(text)
        case float() as number:
            return number if math.isfinite(number) else _unfinite(number)
        case Mapping() as table:
            return {str(key): plain(entry) for key, entry in table.items()}
        case Sequence() | set() | frozenset() as entries:
            return [plain(entry) for entry in entries]
        case record if is_dataclass(record):
            return {part.name: plain(getattr(record, part.name)) for part in fields(record)}
    raise InvalidInput(
        f"cannot write {value!r} ({type(value).__name__}) as JSON; give numbers, texts, lists or mappings"
    )


def _unfinite(value: float) -> str | None:
    if math.isnan(value):
        return None
    return INFINITE if value > 0 else f"-{INFINITE}"


def to_line(value: object) -> str:
    """One line of JSON."""
    return json.dumps(plain(value), ensure_ascii=True, allow_nan=False)


def to_page(value: object) -> str:
    """JSON to be read by people too: one line for each key of the object, and for each entry of its lists."""
    packed = plain(value)
    assert isinstance(packed, dict)
    lines = ",\n".join(f"  {json.dumps(key)}: {_spread(entry)}" for key, entry in packed.items())
    return f"{{\n{lines}\n}}\n"


def _spread(value: JsonValue) -> str:
    if isinstance(value, dict) and value:
        lines = ",\n".join(f"    {json.dumps(key)}: {to_line(entry)}" for key, entry in value.items())
        return f"{{\n{lines}\n  }}"
    if isinstance(value, list) and any(isinstance(entry, (dict, list, str)) for entry in value):
        lines = ",\n".join(f"    {to_line(entry)}" for entry in value)
        return f"[\n{lines}\n  ]"
    return to_line(value)


def from_json(record: type[T], packed: object) -> T:
    """The record that was written; a missing or unknown field is refused, and named."""
    if not isinstance(packed, Mapping):
        raise InvalidInput(f"a {record.__name__} must be a JSON object, got {packed!r}")
    try:
        return record(**packed)
    except TypeError as error:
        raise InvalidInput(f"written by another version of Sordino: {error}") from None
