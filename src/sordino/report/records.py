"""What a run writes down, as frozen values: one `RoundRecord` after each round and one `Result` at its end.

Values are checked where they are made, so that what is on disk is well formed. JSON has no NaN and no infinity: a
measurement that is not a finite number is written as null, an infinite epsilon as the text "infinite".
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

import numpy as np

from sordino.errors import InvalidInput

INFINITE = "infinite"  #: how an infinite epsilon is written in JSON

T = TypeVar("T")
Check = Callable[[str, Any], Any]

# --- what a field may hold -------------------------------------------------------------------------------------------


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < 0:
        raise InvalidInput(f"{name} must be a whole number >= 0, got {value!r}")
    return operator.index(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, (bool, np.bool_, str)) or not hasattr(value, "__float__"):
        raise InvalidInput(f"{name} must be a number or null, got {value!r}")
    return float(value)


def _measurement(name: str, value: Any) -> float | None:
    """A number; none where nothing was measured, or where it diverged and is no number any more."""
    number = None if value is None else _number(name, value)
    return number if number is not None and math.isfinite(number) else None


def _share(name: str, value: Any) -> float | None:
    share = _measurement(name, value)
    if share is not None and not 0 <= share <= 1:
        raise InvalidInput(f"{name} must lie between 0 and 1, got {value!r}")
    return share


def _epsilon(name: str, value: Any) -> float | None:
    """An epsilon may be infinite; one that is no number at all is a mistake and is refused."""
    if value is None:
        return None
    number = math.inf if isinstance(value, str) and value == INFINITE else _number(name, value)
    if not number >= 0:
        raise InvalidInput(f'{name} must be a number >= 0, "{INFINITE}" or null, got {value!r}')
    return number


def _seconds(name: str, value: Any) -> float:
    seconds = _measurement(name, value)
    if seconds is None or seconds < 0:
        raise InvalidInput(f"{name} must be a finite number >= 0, got {value!r}")
    return seconds


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidInput(f"{name} must be true or false, got {value!r}")
    return bool(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be a text, got {value!r}")
    return value


def _optional_text(name: str, value: Any) -> str | None:
    return None if value is None else _text(name, value)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidInput(f"{name} must be a list of texts, got {value!r}")
    return tuple(_text(f"an entry of {name}", entry) for entry in value)


def _table(name: str, value: Any) -> tuple[tuple[int, ...], ...] | None:
    """Whole numbers in rows of one length, from nested sequences or an array."""
    if value is None:
        return None
    rows = tuple(tuple(_count(f"an entry of {name}", entry) for entry in row) for row in value)
    if len({len(row) for row in rows}) > 1:
        raise InvalidInput(f"{name} must be a table: its rows have different lengths")
    return rows


def _counts(name: str, value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} must be a mapping from words to whole numbers, got {value!r}")
    return {_text(f"a key of {name}", key): _count(f"{name}[{key!r}]", number) for key, number in value.items()}


def _settings(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} must be a mapping from recipe keys to values, got {value!r}")
    settings: dict[str, Any] = plain(value)
    return settings


Count = Annotated[int, _count]
Measurement = Annotated[float | None, _measurement]
Share = Annotated[float | None, _share]
Epsilon = Annotated[float | None, _epsilon]
Seconds = Annotated[float, _seconds]
Truth = Annotated[bool, _truth]
Text = Annotated[str, _text]
OptionalText = Annotated[str | None, _optional_text]
Texts = Annotated[tuple[str, ...], _texts]
Table = Annotated[tuple[tuple[int, ...], ...] | None, _table]
Settings = Annotated[Mapping[str, Any], _settings]
Counts = Annotated[Mapping[str, int], _counts]


class _Checked:
    """Every field is checked, and made a plain Python value, when the record is made."""

    def __post_init__(self) -> None:
        record: Any = type(self)
        for name, check in _checks(record).items():
            object.__setattr__(self, name, check(name, getattr(self, name)))


@cache
def _checks(record: type) -> dict[str, Check]:
    return {name: hint.__metadata__[0] for name, hint in get_type_hints(record, include_extras=True).items()}


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


def _simulation(name: str, value: Any) -> Simulation | None:
    return value if value is None or isinstance(value, Simulation) else from_json(Simulation, value)


@dataclass(frozen=True)
class RoundRecord(_Checked):
    """One round as the coordinator saw it, with the model's quality after it where it was evaluated."""

    round: Count
    accuracy: Share = None
    loss: Measurement = None
    validation_accuracy: Share = None
    asked: Count = 0
    reported: Count = 0
    declined: Count = 0  #: by the client's own ledger
    refused: Count = 0  #: by the coordinator, as malformed or out of turn
    late: Count = 0
    strays: Counts = field(default_factory=dict)  #: other answers that nobody waited for, by what is wrong with them
    restarts: Count = 0  #: of the coordinator within this round, after each of which the same plan went out again
    counted: Truth = True  #: the quorum was met and the model moved
    seconds: Seconds = 0.0
    bytes_up: Count = 0
    bytes_down: Count = 0
    spent_max: Epsilon = None  #: over clients, in the budget's terms
    spent_median: Epsilon = None
    simulation: Annotated[Simulation | None, _simulation] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.round < 1:
            raise InvalidInput(f"rounds are counted from 1, got round {self.round}")


@dataclass(frozen=True)
class ClientBudget(_Checked):
    """One client's mechanism strength, the limit its ledger enforced, and what it came to."""

    client: Count
    epsilon: Epsilon = None  #: the mechanism's; never to be read as a guarantee of the client
    limit: Epsilon = None
    spent: Epsilon = None  #: in the budget's terms
    reports: Count = 0
    declined: Count = 0


def _budgets(name: str, value: Any) -> tuple[ClientBudget, ...]:
    return tuple(one if isinstance(one, ClientBudget) else from_json(ClientBudget, one) for one in value)


@dataclass(frozen=True)
class Result(_Checked):
    """What a run came to, with everything its page shows that is not told round by round."""

    name: Text
    seed: Count
    stopped: Text  #: why it stopped, as a sentence
    rounds: Count
    accuracy: Share = None
    loss: Measurement = None
    confusion: Table = None  #: [true class, predicted class]
    classes: Texts = ()
    label_counts: Table = None  #: [client, class]; simulation only
    budgets: Annotated[tuple[ClientBudget, ...], _budgets] = ()
    budget_terms: OptionalText = None  #: basis, adversary, adjacency and delta, in words
    parameters: Count = 0
    clients: Count = 0
    seconds: Seconds = 0.0
    bytes_up: Count = 0
    bytes_down: Count = 0
    preflight: Texts = ()
    recipe_fingerprint: Text = ""
    settings: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        width = len(self.classes)
        if self.confusion is not None and (len(self.confusion), *map(len, self.confusion[:1])) != (width, width):
            raise InvalidInput(f"the confusion matrix must be {width} x {width}, one row and column per class")
        if self.label_counts and len(self.label_counts[0]) != width:
            raise InvalidInput(
                f"label_counts must have one column per class ({width}), got {len(self.label_counts[0])}"
            )


# --- JSON ------------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """The same value in what JSON can say: records as objects, arrays as lists, infinity as text, NaN as null."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else _unfinite(value)
    if value is None or isinstance(value, (bool, int, str)):
        return str(value) if isinstance(value, str) else value
    if is_dataclass(value):
        return {part.name: plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (Sequence, set, frozenset)):
        return [plain(entry) for entry in value]
    raise InvalidInput(
        f"cannot write {value!r} ({type(value).__name__}) as JSON; give numbers, texts, lists or mappings"
    )


def _unfinite(value: float) -> str | None:
    if math.isnan(value):
        return None
    return INFINITE if value > 0 else f"-{INFINITE}"


def to_line(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(plain(value), ensure_ascii=True, allow_nan=False)


def to_page(value: Any) -> str:
    """JSON to be read by people too: one line for each key of the object, and for each entry of its lists."""
    packed = plain(value)
    lines = ",\n".join(f"  {json.dumps(key)}: {_spread(entry)}" for key, entry in packed.items())
    return f"{{\n{lines}\n}}\n"


def _spread(value: Any) -> str:
    if isinstance(value, dict) and value:
        lines = ",\n".join(f"    {json.dumps(key)}: {to_line(entry)}" for key, entry in value.items())
        return f"{{\n{lines}\n  }}"
    if isinstance(value, list) and any(isinstance(entry, (dict, list, str)) for entry in value):
        lines = ",\n".join(f"    {to_line(entry)}" for entry in value)
        return f"[\n{lines}\n  ]"
    return to_line(value)


def from_json(record: type[T], packed: Any) -> T:
    """The record that was written; a missing or unknown field is refused, and named."""
    if not isinstance(packed, Mapping):
        raise InvalidInput(f"a {record.__name__} must be a JSON object, got {packed!r}")
    known = {part.name: part for part in fields(record)}  # type: ignore[arg-type]
    if unknown := sorted(set(packed) - set(known)):
        raise InvalidInput(
            f"a {record.__name__} has no field {', '.join(unknown)}; it was written by another version of Sordino"
        )
    needed = [name for name, part in known.items() if part.default is MISSING and part.default_factory is MISSING]
    if missing := [name for name in needed if name not in packed]:
        raise InvalidInput(f"a {record.__name__} needs {', '.join(missing)}, which is missing")
    return record(**packed)
