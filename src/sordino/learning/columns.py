"""What the cells of a table's columns become: numbers, by rules that the owner declares and that are all public.

A rule takes its list of values, its vocabulary and what stands for a gap from the recipe. None is computed from cells.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from sordino.errors import InvalidInput
from sordino.parts.slot import Slot
from sordino.parts.tables import Count, Says, Spec, as_tuple, refusal, tag
from sordino.parts.toml import shown

MISSING = ("", "NA", "NaN", "nan")  #: how tables write that a cell has no value
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2  #: the numbers of tokens: after a text's end, of other words, of the first word

_WORD = re.compile(r"\w+")


class WrongCell(InvalidInput):
    """A cell that its column's rule refuses; `row` is its place among the cells that were given."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row


class ColumnSpec(Spec):
    """The rule of one column of a table."""

    inline: ClassVar[bool] = True

    @abstractmethod
    def parts(self) -> tuple[str, ...]:
        """What each of the values is called that a cell becomes; empty for a single one that needs no name."""

    @abstractmethod
    def encode(self, cells: Sequence[str]) -> NDArray[np.float32]:
        """The values `[n, parts]` of n cells without spaces around them; `WrongCell` names the first that is wrong."""

    def scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What is subtracted from the values and what they are divided by, before a model sees them."""
        return (0.0,) * len(self.parts()), (1.0,) * len(self.parts())

    def resolved(self) -> ColumnSpec:
        """The same rule with everything that it reads from files."""
        return self

    def pinned(self) -> ColumnSpec:
        """The same rule with a digest of every file that it names."""
        return self

    def portable(self) -> ColumnSpec:
        """The same rule for other machines: with digests, and without folders of this one."""
        return self

    def anchored(self, folder: Path) -> ColumnSpec:
        """The same rule with paths from this folder made absolute."""
        return self

    def meaning(self) -> dict[str, Any]:
        """What the rule does, wherever its files lie: two resolved or pinned rules are equal if these are."""
        return self.model_dump(mode="json", exclude_none=True)

    def filled(self, cells: Sequence[str], remedy: str) -> list[str]:
        """The cells, with what stands for a gap in the place of gaps; refused where nothing is declared for them."""
        fill = getattr(self, "missing", None)
        if fill is None and (gap := next((row for row, cell in enumerate(cells) if cell in MISSING), None)) is not None:
            raise WrongCell(
                gap,
                f"{cells[gap]!r} is a missing value: fill it in, leave the row out, or declare a public value for all "
                f"gaps of this column, such as {remedy} (one that is computed from the records would be a release)",
            )
        return [str(fill) if cell in MISSING else cell for cell in cells]


class NumberColumn(ColumnSpec):
    """A number as it is, scaled by public bounds if these are given."""

    kind: str = tag("number", "a number")
    low: float | None = Field(default=None, description="public lower end of the scale, which becomes 0; with high")
    high: float | None = Field(default=None, description="public upper end of the scale, which becomes 1; with low")
    missing: float | None = Field(
        default=None, description="what stands for an empty cell, NA or NaN: a public number; if left out, a gap is "
        "refused"
    )  # fmt: skip
    flag: bool = Field(default=False, description="one more value beside it: 1 where there is a gap, else 0")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise refusal("got one of low and high; allowed: both or none")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise refusal(f"got low = {self.low:g} and high = {self.high:g}; allowed: low below high")
        if self.flag and self.missing is None:
            raise refusal("got flag without missing; allowed: with missing, what stands for a gap")
        return self

    def parts(self) -> tuple[str, ...]:
        return ("", "missing") if self.flag else ("",)

    def scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        if self.low is None or self.high is None:
            return super().scale()
        return (self.low, 0.0)[: len(self.parts())], (self.high - self.low, 1.0)[: len(self.parts())]

    def encode(self, cells: Sequence[str]) -> NDArray[np.float32]:
        texts = self.filled(cells, "missing = 0")
        if (numbers := float32_of(texts)) is None:
            row = next(row for row, text in enumerate(texts) if float32_of([text]) is None)
            raise WrongCell(
                row,
                f"{texts[row]!r} is not a finite number of float32's range: correct it, or declare the column as "
                'category, words or tokens (data.columns, kind = "category")',
            )
        gaps = np.array([cell in MISSING for cell in cells], np.float32)
        return np.stack([numbers, gaps][: len(self.parts())], axis=1)


def float32_of(cells: Sequence[str] | Sequence[Sequence[str]]) -> NDArray[np.float32] | None:
    """Cells as numbers; None where one of them is no finite number that float32 can hold."""
    try:
        with np.errstate(over="ignore"):
            found = np.array(cells, np.float64).astype(np.float32)
    except ValueError:
        return None
    return found if np.isfinite(found).all() else None


def _different_texts(texts: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(texts)) != len(texts) or any(text != text.strip() for text in texts):
        raise refusal(f"got {shown(texts)}; allowed: texts without spaces around them, all different")
    return texts


class CategoryColumn(ColumnSpec):
    """One of a public list of values: one place for each, 1 in the place of the cell's value and 0 elsewhere."""

    kind: str = tag("category", "one of a public list of values, one place for each")
    values: Annotated[
        tuple[str, ...], BeforeValidator(as_tuple), AfterValidator(_different_texts), MinLen(1),
        Says("a list of texts, all different"),
    ] = Field(description="all values that count, in order: a public list, never read off the records")  # fmt: skip
    other: bool = Field(default=False, description="one more place, for all other values; without it they are refused")
    missing: str | None = Field(
        default=None, description="what stands for an empty cell, NA or NaN: one of values; if left out, a gap is "
        "refused, unless it is itself in values"
    )  # fmt: skip

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.missing is not None and self.missing not in self.values and not self.other:
            raise refusal(f"got missing = {shown(self.missing)}; allowed: one of values, or any text with other = true")
        return self

    def parts(self) -> tuple[str, ...]:
        return (*self.values, "other") if self.other else self.values

    def encode(self, cells: Sequence[str]) -> NDArray[np.float32]:
        position = {value: place for place, value in enumerate(self.values)}
        gaps = [cell for cell in cells if cell not in position]
        texts = self.filled(cells, f"missing = {shown(self.values[0])}") if any(g in MISSING for g in gaps) else cells
        places = [
            position.get(cell, position.get(text, len(self.values))) for cell, text in zip(cells, texts, strict=True)
        ]
        if not self.other and len(self.values) in places:
            row = places.index(len(self.values))
            raise WrongCell(
                row,
                f"{cells[row]!r} is not in its list of values {shown(self.values)}: correct the cell, add the value to "
                "the list of everybody, or give all other values a place (other = true)",
            )
        return np.eye(len(self.parts()), dtype=np.float32)[places]


def words_of(text: str) -> list[str]:
    """The words of a text in order, in lower case: letters, digits and underscores that stand together."""
    folded = unicodedata.normalize("NFD", text).casefold()  # of letters without their accents: ΐ folds to three
    return _WORD.findall(unicodedata.normalize("NFC", folded))


def _vocabulary(words: str | tuple[str, ...]) -> str | tuple[str, ...]:
    if isinstance(words, str):
        return words
    if odd := [word for word in words if words_of(word) != [word]]:
        raise refusal(
            f"got {shown(odd[0])} in it, which is not one word: words are letters, digits and underscores in lower case"
            + (f", such as {shown(words_of(odd[0])[0])}" if words_of(odd[0]) else "")
        )
    if len(set(words)) != len(words):
        double = next(word for word in words if words.count(word) > 1)
        raise refusal(f"got {shown(double)} twice in it; allowed: words that are all different")
    return words


Vocabulary = Annotated[
    Annotated[str, MinLen(1)] | Annotated[tuple[str, ...], MinLen(1)],
    BeforeValidator(as_tuple),
    AfterValidator(_vocabulary),
    Says("a list of words in lower case, or the path of a text file with one a line"),
    Field(description="all words that count, in order: a public list, never made from the records"),
]
Digest = Annotated[
    str | None,
    Field(
        description="SHA-256 of the vocabulary's words, each with a line's end; runs and invitations write it down, "
        "and other words are refused"
    ),
]
Missing = Annotated[
    str | None,
    Field(description='the text that stands for an empty cell, NA or NaN, such as ""; if left out, a gap is refused'),
]


class _VocabularyColumn(ColumnSpec):
    """Text as the words of a public vocabulary."""

    if TYPE_CHECKING:  # in the order in which each of them has its keys
        vocabulary: str | tuple[str, ...]
        digest: str | None

    def words(self) -> tuple[str, ...]:
        """The vocabulary, from the list or its file."""
        words = self.vocabulary if isinstance(self.vocabulary, tuple) else _read_words(Path(self.vocabulary))
        if self.digest is not None and self.digest != digest_of(words):
            raise InvalidInput(
                f"the vocabulary {shown(self.vocabulary)} has the digest {digest_of(words)}, and {self.digest} was "
                "agreed on: put the agreed words in its place, or take data.columns' digest away for a new run"
            )
        return words

    def resolved(self) -> ColumnSpec:
        return self.model_copy(update={"vocabulary": self.words(), "digest": None})

    def pinned(self) -> ColumnSpec:
        if isinstance(self.vocabulary, tuple):
            return self
        return self.model_copy(update={"digest": digest_of(self.words())})

    def portable(self) -> ColumnSpec:
        if isinstance(self.vocabulary, tuple):
            return self
        name = PurePath(self.vocabulary.replace("\\", "/")).name
        return self.pinned().model_copy(update={"vocabulary": f"./{name}"})

    def anchored(self, folder: Path) -> ColumnSpec:
        if isinstance(self.vocabulary, tuple):
            return self
        return self.model_copy(update={"vocabulary": str(folder / Path(self.vocabulary).expanduser())})

    def meaning(self) -> dict[str, Any]:
        found = super().meaning()
        found.pop("digest", None)
        words = self.vocabulary  # no file is read: the rule may be somebody else's
        return {**found, "vocabulary": digest_of(words) if isinstance(words, tuple) else self.digest}


def digest_of(words: Sequence[str]) -> str:
    """SHA-256 of a vocabulary: its words in UTF-8, each with a line's end."""
    return hashlib.sha256("".join(f"{word}\n" for word in words).encode()).hexdigest()


def _read_words(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the vocabulary {path} cannot be read as lines of text in UTF-8 ({error})") from None
    words = tuple(line.strip() for line in lines if line.strip())
    try:
        _vocabulary(words)
    except PydanticCustomError as error:
        raise InvalidInput(f"the vocabulary {path}: {error.message()}") from None
    if not words:
        raise InvalidInput(f"the vocabulary {path} holds no words: write one a line")
    return words


class WordsColumn(_VocabularyColumn):
    """Text as a bag of words: how often each word of the vocabulary occurs in it."""

    kind: str = tag("words", "text, as how often each word of a public vocabulary occurs")
    vocabulary: Vocabulary
    other: bool = Field(default=False, description="one more value: how many of the text's words are not in vocabulary")
    missing: Missing = None
    digest: Digest = None

    def parts(self) -> tuple[str, ...]:
        return (*self.words(), "(other)") if self.other else self.words()

    def encode(self, cells: Sequence[str]) -> NDArray[np.float32]:
        words = self.words()
        position = {word: place for place, word in enumerate(words)}
        found = np.zeros((len(cells), len(words) + 1), np.float32)
        for row, text in enumerate(self.filled(cells, 'missing = ""')):
            for word in words_of(text):
                found[row, position.get(word, len(words))] += 1
        return found if self.other else found[:, :-1]


class TokensColumn(_VocabularyColumn):
    """Text as the numbers of its first words, for embeddings and recurrent networks.

    0 stands after the end of a text, 1 for a word that is not in the vocabulary, 2 for its first word, and so on.
    """

    kind: str = tag("tokens", "text, as the numbers of its first words in a public vocabulary, for embeddings")
    vocabulary: Vocabulary
    length: Count = Field(description="how many words of a text are kept; shorter ones are filled up with 0")
    missing: Missing = None
    digest: Digest = None

    def parts(self) -> tuple[str, ...]:
        return tuple(str(place) for place in range(self.length))

    def encode(self, cells: Sequence[str]) -> NDArray[np.float32]:
        number = {word: place for place, word in enumerate(self.words(), FIRST_WORD)}
        found = np.full((len(cells), self.length), PADDING, np.float32)
        for row, text in enumerate(self.filled(cells, 'missing = ""')):
            for place, word in enumerate(words_of(text)[: self.length]):
                found[row, place] = number.get(word, UNKNOWN)
        return found


AnyColumn = Annotated[ColumnSpec, Slot("column")]
ColumnRules = Mapping[str, ColumnSpec]
