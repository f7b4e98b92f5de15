"""The owner's records, as the settings name them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from sordino.client.invitation import Invitation
from sordino.client.refusal import Reason, Refused
from sordino.client.settings import OwnData
from sordino.errors import InvalidInput
from sordino.learning.cohort import ClientData
from sordino.learning.columns import ColumnRules
from sordino.learning.datasets import KNOWN
from sordino.learning.examples import Examples, Normalisation
from sordino.learning.held_out import held_out
from sordino.learning.tables import ClientReading
from sordino.learning.tasks import CLASSES, REGRESSION, LearningTask
from sordino.parts.words import nearest
from sordino.privacy.history import members
from sordino.recipe.grammar import origin_of
from sordino.recipe.sources import source_of


@dataclass(frozen=True, eq=False)
class OwnRecords:
    """One client's records, and what is public about their form."""

    examples: Examples
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    rules: ColumnRules = field(default_factory=dict)  #: what the cells of declared columns became
    task: LearningTask = CLASSES
    left_out: tuple[str, ...] = ()  #: why records are left out that are not what they should be
    warning: str = ""  #: to the owner, of the records as a whole

    @classmethod
    def read(cls, data: OwnData, folder: Path) -> OwnRecords:
        """The records that the settings in `folder` name; relative paths are relative to it.

        The first that is not what it should be is refused. That is for the owner to hear, and for nobody else: what a
        server asks for is answered with `read_apart`.
        """
        return cls._read(_checked(data, folder), ClientReading())

    @classmethod
    def read_apart(cls, data: OwnData, folder: Path, shape: tuple[int, ...]) -> OwnRecords:
        """The same, where records that are not what they should be count as absent: refusing would tell of them.

        So do records of another `shape` than the agreed one; where nothing can be read of a file that has no header,
        there are none. What is no record is refused: a file or a header that is not there, settings, a vocabulary.
        """
        own = _checked(data, folder)
        try:
            return cls._read(own, ClientReading(shape))
        except Exception as error:
            if not _begins_with_records(own):
                raise
            return cls._unread(own, shape, str(error))

    @classmethod
    def _unread(cls, data: OwnData, shape: tuple[int, ...], why: str) -> OwnRecords:
        none = Examples(np.zeros((0, math.prod(shape)), np.float32), np.zeros(0, np.int64))
        return cls(none, shape, data.names, data.columns or {}, data.task or CLASSES, (why,))

    @classmethod
    def _read(cls, data: OwnData, apart: ClientReading) -> OwnRecords:
        dataset = source_of(data, 0, apart=apart)
        train, held_out = dataset.train, dataset.held_out
        rows = np.arange(len(train) + held_out.size) if apart.rows is None else apart.rows
        end = int(rows[-1]) + 1 if rows.size else 0
        named = np.arange(end) if data.rows is None else _rows(data.rows, end if apart.shape is None else None)
        most = data.train_limit or end
        if data.rows is not None and apart.shape is None and (beyond := named[named >= most]).size:
            raise InvalidInput(
                f'data.rows = "{data.rows}" names rows that lie beyond the first {most}, to which data.train_limit '
                f"cuts them, such as row {beyond[0]}: leave one of the two out"
            )
        own = np.delete(rows, held_out)  # before anything is chosen: a record that is left out moves no other
        chosen = np.flatnonzero(np.isin(own, named) & (own < most))
        taken = train if len(chosen) == len(train) else train.take(chosen)
        form = (tuple(dataset.shape), tuple(dataset.classes), dataset.rules, dataset.task)
        return cls(taken, *form, tuple(apart.left_out), apart.warning)

    def __len__(self) -> int:
        return len(self.examples)

    def sides(self, share: float, seed: int) -> tuple[OwnRecords, OwnRecords]:
        """The records to train on, and those that are set aside, by the public rule of `learning.held_out`."""
        aside = held_out(self.examples.x, share, seed)
        first, second = (replace(self, examples=self.examples.take(np.flatnonzero(own))) for own in (~aside, aside))
        return first, second

    def check(self, invitation: Invitation, task: LearningTask = CLASSES) -> None:
        """Refuse a federation about records of another form, or one that learns another `task` from them."""
        if self.task != task:
            raise Refused(
                Reason.NOT_IN_RECIPE,
                f"{invitation.federation} learns {task}, and your records are for {self.task}: state the same "
                "data.classes, data.labels or data.target as its recipe does",
            )
        if self.shape != invitation.shape or (task.kind != REGRESSION and self.classes != invitation.classes):
            raise Refused(
                Reason.NOT_IN_RECIPE,
                f"{invitation.federation} is about records of shape {list(invitation.shape)} in the classes "
                f"{', '.join(invitation.classes)}; yours have the shape {list(self.shape)} and the classes "
                f"{', '.join(self.classes)}: they must agree, in this order",
            )
        try:
            Normalisation(invitation.mean, invitation.std).check(invitation.shape)
        except InvalidInput as error:
            raise Refused(Reason.NOT_IN_RECIPE, f"{invitation.federation}: its constants do not fit: {error}") from None

    def check_columns(self, federation: str, agreed: ColumnRules) -> None:
        """Refuse a federation that makes other numbers of columns than these records' owner; no file is read."""
        mine, theirs = ([(name, rule.meaning()) for name, rule in rules.items()] for rules in (self.rules, agreed))
        if not mine or not theirs or mine == theirs:  # one of the two says nothing of columns
            return
        names = [[name for name, _ in each] for each in (mine, theirs)]
        differ = [name for (name, rule), (_, other) in zip(mine, theirs, strict=False) if rule != other]
        said = f"differs in {', '.join(differ)}" if names[0] == names[1] else f"lists {', '.join(names[1])}"
        raise Refused(
            Reason.NOT_IN_RECIPE,
            f"{federation} declares other columns (data.columns): it {said}; yours are {', '.join(names[0])}. Take the "
            "federation's table, in its order, and its vocabulary files",
        )

    def normalised(self, invitation: Invitation) -> ClientData | None:
        """The records, normalised by the federation's public constants; None if there are no records."""
        if not len(self):
            return None
        constants = Normalisation(invitation.mean, invitation.std)
        x, y = torch.from_numpy(constants.apply(self.examples.x)), torch.from_numpy(self.examples.y)
        return ClientData(x, y, invitation.federation)


#: what settings must say of the owner's own data; labels or a target's range may stand in place of classes
_NEEDS = {"npz": ("classes",), "table": ("classes", "label"), "images": ("classes",)}
_INSTEAD = {"classes": ("labels", "target"), "label": ("labels",)}


def _check(data: OwnData) -> None:
    """Refuse an unknown source, and one that the settings do not describe."""
    origin = origin_of(data.source)
    if origin is None:
        raise InvalidInput(
            f"data.source: unknown data set {data.source!r}; {nearest(data.source, KNOWN)}known: {', '.join(KNOWN)}; "
            "your own is a path to an .npz or .csv file, or a folder of images written with a slash (./scans)"
        )

    def lacks(name: str) -> bool:
        return all(getattr(data, one) in (None, "", ()) for one in (name, *_INSTEAD[name]))

    if missing := [name for name in _NEEDS.get(origin, ()) if lacks(name)]:
        what = {"classes": "the names of all classes, in the federation's order", "label": "the label's column"}
        said = " and ".join(f"data.{name} (--{name}: {what[name]})" for name in missing)
        raise InvalidInput(f"{data.source}: for data of your own, {said} must be given")
    if data.columns and (origin != "table" or data.features is not None or isinstance(data.label, int)):
        raise InvalidInput(
            f"{data.source}: data.columns are columns of a .csv file with a header, in place of data.features; the "
            "label goes by name as well"
        )


def _anchored(data: OwnData, folder: Path) -> OwnData:
    """With absolute paths; a client tests on nothing, so a second place with test examples is left alone."""
    if origin_of(data.source) not in ("npz", "table", "images"):
        return data
    source = str(folder / Path(data.source).expanduser())
    test = data.test if isinstance(data.test, float) else None
    columns = data.columns and {name: rule.anchored(folder) for name, rule in data.columns.items()}
    return data.model_copy(update={"source": source, "test": test, "columns": columns})


def _checked(data: OwnData, folder: Path) -> OwnData:
    """The settings with absolute paths, if all that they name is there."""
    _check(data)
    own = _anchored(data, folder)
    for rule in (own.columns or {}).values():
        rule.resolved()
    if origin_of(own.source) in ("npz", "table", "images"):
        try:
            Path(own.source).stat()
        except OSError as error:
            raise InvalidInput(f"{own.source}: cannot be opened ({error.strerror}): put your data back there") from None
    return own


def _begins_with_records(data: OwnData) -> bool:
    """Whether what is read first are records, and not a header that says how they look."""
    origin = origin_of(data.source)
    return origin in ("npz", "images") or (origin == "table" and isinstance(data.label, int))


def _rows(text: str, most: int | None) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The rows that settings name, all below `most` where that is given."""
    try:
        found = np.array(members(text), np.int64)
    except ValueError:
        found = np.array([-1])
    if not found.size or found[0] < 0 or (most is not None and found[-1] >= most):
        last = "" if most is None else f" to {most - 1}"
        raise InvalidInput(f'data.rows = "{text}" is no rising list of examples from 0{last}, such as "0-9, 20"')
    return found


__all__ = ["OwnRecords"]
