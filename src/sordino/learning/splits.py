"""The tables of splits: who holds which examples. The rules themselves are in `partition`."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Le, MinLen
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field

from sordino.errors import InvalidInput
from sordino.learning import partition
from sordino.learning.examples import naming
from sordino.learning.partition import BETA_RANGE, MAX_CLIENTS
from sordino.learning.tasks import ALL_TASKS, CLASSES_ALONE
from sordino.parts.slot import Slot
from sordino.parts.tables import Count, Found, Natural, Says, SomeTexts, Spec, as_tuple, reads, refusal, tag
from sordino.parts.toml import shown

if TYPE_CHECKING:
    from sordino.learning.examples import Dataset

Clients = Annotated[int, Ge(1), Le(MAX_CLIENTS), Field(description="number of clients")]
AtLeast = Annotated[Natural, Field(description="fewest examples a client may hold (0 allows clients without any)")]


class SplitSpec(Spec):
    """A way to divide a data set among clients."""

    tasks: ClassVar[frozenset[str]] = ALL_TASKS  #: what may be learnt from examples that it divides

    @property
    @abstractmethod
    def number(self) -> int:
        """Number of clients."""

    @abstractmethod
    def parts(self, dataset: Dataset, seed: int) -> list[NDArray[np.int64]]:
        """The training examples of each client, by their places in the data set."""

    @property
    def source_column(self) -> str | int | None:
        """The column of the source that says who holds a row, and is no feature; None where no column does."""
        return None

    @reads("data.source", "data.train_limit", "split")
    def enough_examples(self, recipe: Any) -> Found:
        """A data set of known size has examples for everybody."""
        examples = recipe.data.examples
        if examples is not None:
            yield from self.too_few(examples, recipe.data.known_classes)

    def too_few(self, examples: int, classes: int) -> Found:
        """What is wrong where there are so many examples of so many classes."""
        yield from ()


class _Dealt(SplitSpec):
    """A split of all examples among a given number of clients."""

    if TYPE_CHECKING:  # in the order in which each of them has its keys
        clients: int
        at_least: int

    @property
    def number(self) -> int:
        return self.clients

    def too_few(self, examples: int, classes: int) -> Found:
        if self.clients * self.at_least > examples:
            yield (
                ".clients",
                f"{self.clients:,} clients with at least {self.at_least} examples each need more than the "
                f"{examples:,} there are: take fewer, or split.at_least = 0 where clients may be empty",
            )


class IidSplit(_Dealt):
    """All examples dealt at random, as evenly as possible."""

    kind: str = tag("iid", "dealt at random, as evenly as possible")
    clients: Clients
    at_least: AtLeast = 1

    def parts(self, dataset: Dataset, seed: int) -> list[NDArray[np.int64]]:
        return partition.iid(len(dataset.train), self.clients, seed, at_least=self.at_least)


class SizesSplit(SplitSpec):
    """As many examples for each client as its size says, chosen at random."""

    kind: str = tag("sizes", "as many for each client as its size says")
    sizes: Annotated[tuple[Natural, ...], BeforeValidator(as_tuple), MinLen(1)] = Field(
        description="number of examples of each client"
    )
    at_least: AtLeast = 1

    @property
    def number(self) -> int:
        return len(self.sizes)

    def parts(self, dataset: Dataset, seed: int) -> list[NDArray[np.int64]]:
        return partition.by_sizes(len(dataset.train), self.sizes, seed, at_least=self.at_least)

    def too_few(self, examples: int, classes: int) -> Found:
        if sum(self.sizes) > examples:
            yield ".sizes", f"add up to {sum(self.sizes):,}; allowed: at most {examples:,}, all there are"

    @reads(".sizes", ".at_least")
    def every_size_is_at_least_that(self, recipe: object) -> Found:
        """Refuse sizes below `at_least`."""
        if (least := min(self.sizes)) < self.at_least:
            allowed = f"at least split.at_least = {self.at_least}, which may be 0"
            yield f".sizes[{self.sizes.index(least)}]", f"got {least}; allowed: {allowed}"


class DirichletSplit(_Dealt):
    """Label skew: clients' shares of every class are Dirichlet(beta, ..., beta)."""

    kind: str = tag("dirichlet", "label skew: Dirichlet shares of every class")
    tasks: ClassVar[frozenset[str]] = CLASSES_ALONE
    clients: Clients
    beta: Annotated[float, Ge(BETA_RANGE[0]), Le(BETA_RANGE[1])] = Field(
        description="small: a class is with few clients; large: nearly the same mixture everywhere"
    )
    at_least: AtLeast = 1

    def parts(self, dataset: Dataset, seed: int) -> list[NDArray[np.int64]]:
        return partition.dirichlet(
            dataset.train.y.astype(np.int64), self.clients, self.beta, seed, at_least=self.at_least
        )


class ShardsSplit(SplitSpec):
    """Shards of one label each, so many to every client."""

    kind: str = tag("shards", "shards of one label each, so many to every client")
    tasks: ClassVar[frozenset[str]] = CLASSES_ALONE
    clients: Clients
    labels_per_client: Count = Field(description="shards dealt to each client, so its labels at most")

    @property
    def number(self) -> int:
        return self.clients

    def parts(self, dataset: Dataset, seed: int) -> list[NDArray[np.int64]]:
        return partition.shards(dataset.train.y.astype(np.int64), self.clients, self.labels_per_client, seed)

    def too_few(self, examples: int, classes: int) -> Found:
        shards = self.clients * self.labels_per_client
        if not classes <= shards <= examples:
            yield (
                ".labels_per_client",
                f"{self.clients:,} clients with {self.labels_per_client} labels each make {shards:,} shards; allowed: "
                f"{classes} (one per class) to {examples:,} (one per example)",
            )


class FilesSplit(SplitSpec):
    """Who holds what as written down: one file of indices per client."""

    kind: str = tag("files", "as written down, one file per client")
    files: SomeTexts = Field(
        description="one file per client: rows of the source, from 0, as a .npy array or as text with one a line"
    )
    at_least: AtLeast = 1

    @property
    def number(self) -> int:
        return len(self.files)

    def parts(self, dataset: Dataset, seed: int) -> list[NDArray[np.int64]]:
        return partition.from_files(self.files, len(dataset.train), held_out=dataset.held_out, at_least=self.at_least)


_Names = int | tuple[str, ...] | tuple[int, ...]


def _different_names(clients: _Names) -> _Names:
    if isinstance(clients, tuple):
        names = [str(name) for name in clients]
        if len(set(names)) != len(names) or not all(name and name == name.strip() for name in names):
            raise refusal(f"got {shown(clients)}; allowed: names without spaces around them, none empty, all different")
    return clients


class ColumnSplit(SplitSpec):
    """Who holds what as a column of the source says: a hospital, a user."""

    kind: str = tag("column", "by a column of the source, such as hospital")
    column: str | int = Field(
        description="the column that says who holds a row, and is no feature: of a .csv table, by name, or by number "
        "where there is no header; or the name of an array of an .npz file, or of one of Dataset.columns"
    )
    clients: Annotated[
        Annotated[int, Ge(1), Le(MAX_CLIENTS)]
        | Annotated[tuple[str, ...], MinLen(1)]
        | Annotated[tuple[int, ...], MinLen(1)],
        BeforeValidator(as_tuple),
        AfterValidator(_different_names),
        Says(f"a whole number >= 1 and <= {MAX_CLIENTS}, or a list of names or whole numbers"),
    ] = Field(description="the clients as the column names them, in order; or how many there are, in rising order")
    at_least: AtLeast = 1

    @property
    def number(self) -> int:
        return self.clients if isinstance(self.clients, int) else len(self.clients)

    @property
    def source_column(self) -> str | int:
        return self.column

    def parts(self, dataset: Dataset, seed: int) -> list[NDArray[np.int64]]:
        if (values := dataset.columns.get(self.column)) is None:
            raise InvalidInput(
                f"{dataset.source}: there is no column {self.column!r} beside the records; there are "
                f"{list(dataset.columns)}: name one of these, or have the source return it in Dataset.columns"
            )
        clients = self.clients if isinstance(self.clients, int) else [str(name) for name in self.clients]
        with naming(f"{dataset.source}, column {self.column!r}"):
            return partition.by_column(
                values, clients, len(dataset.train), held_out=dataset.held_out, at_least=self.at_least
            )

    @reads("data.source", "data.label", "data.labels", "data.features", "data.columns", ".column")
    def column_of_the_source(self, recipe: Any) -> Found:
        """The source has columns, and this one is neither the label nor a feature."""
        data = recipe.data
        if data.origin in ("known", "images"):
            yield (
                ".column",
                f"got {shown(self.column)}, but {data.source} has no columns; allowed: with a .csv table, an .npz file "
                'or a data source of your own; or take another split.kind, such as "iid" or "files"',
            )
        elif data.origin == "table" and self.column in (data.label, *(data.labels or ())):
            yield ".column", f"got {shown(self.column)}, which is the label; allowed: any other column"
        elif self.column in (data.features or data.columns or ()):
            where = "data.features" if data.features else "data.columns"
            yield (
                ".column",
                f"got {shown(self.column)}, which is one of {where}; allowed: a column that is no feature: take it out "
                "there",
            )


AnySplit = Annotated[SplitSpec, Slot("split")]

__all__ = [
    "AnySplit", "ColumnSplit", "DirichletSplit", "FilesSplit", "IidSplit", "ShardsSplit", "SizesSplit", "SplitSpec",
]  # fmt: skip
