"""The owner's settings: `client.toml` in the client's folder, which a person reads and edits."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, Self

from annotated_types import Ge, Le
from pydantic import Field, StringConstraints, ValidationError, model_validator

from sordino.errors import InvalidInput
from sordino.parts.tables import Count, NonNegative, Positive, Says, Share, Texts, TomlTable, refusal
from sordino.parts.toml import inline
from sordino.parts.toml import key as toml_key
from sordino.privacy.guarantee import SERVER, Budget, summed
from sordino.privacy.ledger import Consents
from sordino.privacy.terms import adjacency_named
from sordino.recipe import Data
from sordino.recipe.problems import translated
from sordino.shuffler.remote import Remote
from sordino.storage.files import write_whole

LONGEST_TOKEN = 1000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  #: of clients, data sets and federations

Name = Annotated[
    str,
    StringConstraints(pattern=f"^{NAME.pattern}$"),
    Says("letters, digits, dots, - and _, at most 100, beginning with a letter or digit"),
]
PublicKey = Annotated[
    str,
    StringConstraints(pattern="^[0-9a-f]{64}$"),
    Says("64 hexadecimal digits, as `sordino keys` and `sordino client show` print them"),
]


class OwnData(Data):
    """Which records this client holds: a source as in recipes, and which of its training examples."""

    name: Name = Field(
        default="records", description="what the ledger calls this data; it keeps its name when it grows"
    )
    rows: str | None = Field(default=None, description='which rows of the source, such as "0-598"; all if left out')


class OwnBudget(TomlTable):
    """What the ledger enforces, against the server and whoever sees less than it."""

    limit: Positive = Field(description="the largest epsilon that may ever be spent")
    delta: Share = Field(default=0.0, description="the delta at which epsilon is counted")
    adjacency: str = Field(default="client", description="what is hidden")
    basis: Literal["proven", "claimed"] = Field(default="proven", description="which epsilon is counted")


class OwnSummedBudget(TomlTable):
    """A second limit, against whoever sees only sums; charged where the keys of all others are listed under peers."""

    limit: Positive = Field(description="the largest epsilon that may ever be spent in secure sums")
    honest: Count = Field(description="how many honest clients you count on in a sum, yourself included")
    delta: Share = Field(default=0.0, description="the delta at which epsilon is counted")
    adjacency: str = Field(default="client", description="what is hidden")


class OwnConsents(TomlTable):
    """What the owner agrees to."""

    federations: Texts = Field(
        default=("*",),
        description="which may be joined, by name (* is any); without a question only those under [coordinators]",
    )
    unproven: Texts = Field(default=(), description="kinds of release that may leave without a proof")
    claimed: bool = Field(default=False, description="whether epsilons may be counted that nothing proves")
    code: Texts = Field(
        default=(), description="models and parts of one's own (package.module:Class) that recipes may name"
    )
    per_record: bool = Field(
        default=False,
        description="whether that code treats each record by itself, as a recipe's model.per_record says: only its "
        "owner can know",
    )
    weights: Texts = Field(
        default=(),
        description="files of frozen networks, as recipes name them, that were not trained on these records",
    )


class OwnLimits(TomlTable):
    """What one federation may take of this machine; a recipe that asks for more is declined with the limit's name."""

    parameters: Count = Field(default=10_000_000, description="numbers that a model may have")
    layers: Count = Field(default=500, description="layers with parameters that a model may have")
    rounds: Count = Field(default=1000, description="rounds of a schedule")
    seconds: Positive = Field(
        default=900.0,
        description="of computing in a round: estimated before it begins, and ended by a clock unless about records",
    )
    memory: Count = Field(default=2000, description="megabytes that a round may take, as estimated")
    delay: NonNegative = Field(default=3600.0, description="seconds over which a shuffler may have a report spread")
    strengths: Count = Field(default=1000, description="different epsilons among the clients of a federation")
    accounting: Count = Field(default=10_000, description="releases of a schedule that may have to be accounted for")


class OwnKeeping(TomlTable):
    """How long the ledger keeps what a server could ask for again."""

    reports_days: Annotated[float, Ge(0), Le(36_500)] = Field(
        default=30.0,
        description="days for which a report's bytes stay after its round is over at the server; then their hash does",
    )

    @property
    def reports(self) -> timedelta:
        """How long the bytes of reports stay."""
        return timedelta(days=self.reports_days)


class OwnShuffler(TomlTable):
    """The shuffler that sealed reports of one federation may be sent to."""

    url: str = Field(description="its address, as the federation's recipe names it")
    token: str = Field(description="the file with this client's token there; a relative path is within the folder")
    trusted: str | None = Field(default=None, description="a file with the certificate to trust; the system's if not")
    latency: Annotated[float, Ge(0), Le(86_400)] | None = Field(
        default=None, description="the T that this client proposes, in seconds; none if left out"
    )

    def token_in(self, folder: Path) -> str:
        """The token, from its file."""
        path = folder / Path(self.token).expanduser()
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"{path}, which should hold this client's token at {self.url}, cannot be read ({error})"
            ) from None


class OwnSocket(TomlTable):
    """Where the client answers, and who else may ask there."""

    path: str = Field(default="client.sock", description="the socket; a relative path is within the folder")
    group: str = Field(
        default="", description="whose accounts may open it too: that of Flower's node; empty: the owner's alone"
    )


class Settings(TomlTable):
    """All of `client.toml`."""

    data: OwnData = Field(description="the records")
    budget: OwnBudget = Field(description="what may be spent")
    summed_budget: OwnSummedBudget | None = Field(
        default=None, description="what may be spent in secure sums with listed keys, beside the budget"
    )
    consents: OwnConsents = Field(default=OwnConsents(), description="what is agreed to")
    limits: OwnLimits = Field(default=OwnLimits(), description="what one federation may take of this machine")
    socket: OwnSocket = Field(default=OwnSocket(), description="where the client answers")
    keep: OwnKeeping = Field(default=OwnKeeping(), description="how long reports stay in the ledger")
    shuffler: dict[str, OwnShuffler] = Field(default={}, description="where sealed reports may go, by federation")
    coordinators: dict[str, PublicKey] = Field(
        default={}, description="keys that sign plans, by federation: an invitation that names another is refused"
    )
    peers: dict[str, dict[str, PublicKey]] = Field(
        default={}, description="keys that sign for the other clients in secure sums, by federation and number"
    )

    @classmethod
    def read(cls, path: Path) -> Settings:
        """The settings in a file; everything that is wrong with them is said at once."""
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InvalidInput(
                f"{path} is missing: {path.parent} is no client's folder. Make one: sordino client init FOLDER"
            ) from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidInput(f"{path} cannot be read as TOML ({error}): correct it") from None
        return cls.of(tables, str(path))

    @classmethod
    def of(cls, tables: Mapping[str, object], where: str = "the settings") -> Settings:
        """The settings that these tables hold."""
        try:
            return cls.model_validate(tables)
        except ValidationError as error:
            raise InvalidInput(f"{where}: {'; '.join(map(str, translated(error, cls, tables)))}") from None

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            self.ledger_budget(), self.ledger_summed_budget()
        except InvalidInput as error:
            raise refusal(str(error)) from None
        if self.budget.basis == "claimed" and not self.consents.claimed:
            raise refusal(
                'budget.basis = "claimed" counts claimed epsilons, which nothing proves, and you have not agreed to '
                "that: set consents.claimed = true (--claimed) as well, or count proven ones"
            )
        for federation, keys in self.peers.items():
            if strange := [number for number in keys if not re.fullmatch(r"0|[1-9][0-9]{0,8}", number)]:
                raise refusal(f"peers.{federation}: {strange[0]!r} is no client's number in the federation")
            for key, count in Counter(keys.values()).items():
                if count > 1:
                    numbers = ", ".join(number for number, own in keys.items() if own == key)
                    raise refusal(
                        f"peers.{federation}: {numbers} have one key, {key}: whoever holds it would stand for several "
                        "honest clients. Ask each owner for the key of their own"
                    )
        return self

    def ledger_budget(self) -> Budget:
        """The budget as a ledger enforces it. The server is the adversary: a client cannot vouch for anybody else."""
        own = self.budget
        return Budget(own.limit, own.delta, own.basis, adjacency_named(own.adjacency), SERVER)

    def ledger_summed_budget(self) -> Budget | None:
        """The second budget as a ledger enforces it, where there is one."""
        own = self.summed_budget
        if own is None:
            return None
        return Budget(own.limit, own.delta, "proven", adjacency_named(own.adjacency), summed(own.honest))

    def ledger_consents(self) -> Consents:
        """The consents that a ledger asks for."""
        return Consents(frozenset(self.consents.unproven), self.consents.claimed)

    def allows(self, federation: str) -> bool:
        """Whether a federation of this name may be joined at all."""
        return any(fnmatchcase(federation, pattern) for pattern in self.consents.federations)

    def names(self, federation: str) -> bool:
        """Whether the owner wrote down this very federation and its coordinator's key: then nobody need be asked.

        Without the key, whoever comes first under that name would be taken for the coordinator.
        """
        return federation in self.consents.federations and federation in self.coordinators

    def to_toml(self) -> str:
        """The file, with a line on what each part is for."""
        blocks = ["# The owner's settings. The ledger writes down every change of budget and consents.\n"]
        for name, field in type(self).model_fields.items():
            if isinstance(part := getattr(self, name), TomlTable):
                blocks.append(f"# {field.description}\n" + _block(f"[{name}]", part, brief=name == "data"))
        blocks += [_shuffler_block(federation, own) for federation, own in self.shuffler.items()]
        keys = {f"[peers.{toml_key(federation)}]": own for federation, own in self.peers.items()}
        if self.coordinators:
            keys = {"[coordinators]  # keys that sign plans, by federation": self.coordinators, **keys}
        for head, own in keys.items():
            blocks.append("\n".join([head, *(f'{toml_key(name)} = "{key}"' for name, key in own.items())]) + "\n")
        return "\n".join(blocks)


def _block(head: str, table: TomlTable, *, brief: bool = False) -> str:
    """The lines of a table; `brief` leaves out defaults and what keys are for."""
    lines, values = [head], table.model_dump(mode="json", exclude_none=True)
    for key, field in type(table).model_fields.items():
        value = getattr(table, key)
        if value is not None and not (brief and value == field.default):
            lines.append(f"{key} = {inline(values[key])}" + ("" if brief else f"  # {field.description}"))
    return "\n".join(lines) + "\n"


def _shuffler_block(federation: str, own: OwnShuffler) -> str:
    """The lines that allow a shuffler; added to the end of a file they change nothing before them."""
    return _block(f"[shuffler.{toml_key(federation)}]  # where sealed reports of this federation may go", own)


def allow_shuffler(
    folder: Path, federation: str, url: str, token: str, *, trusted: str | None = None, latency: float | None = None
) -> Path:
    """Allow a shuffler in a client's folder: what was in client.toml stays as it is. Where the token lies now."""
    path = folder / "client.toml"
    settings = Settings.read(path)
    if federation in settings.shuffler:
        raise InvalidInput(
            f"{path} has a shuffler for {federation} already, at {settings.shuffler[federation].url}: edit it there"
        )
    if not NAME.fullmatch(federation):
        raise InvalidInput(f"a federation's name has letters, digits, dots, - and _, at most 100, got {federation!r}")
    if not token or len(token.split()) != 1 or len(token) > LONGEST_TOKEN:
        raise InvalidInput("the file should hold one token and nothing else, as `sordino shuffler register` writes it")
    Remote(url, token)  # refuses an address that is none
    name = f"shuffler-{federation}.token"
    own = OwnShuffler(url=url, token=name, trusted=trusted, latency=latency)
    write_whole(folder / name, token.encode() + b"\n", 0o600)
    before = path.read_text(encoding="utf-8").rstrip("\n")
    write_whole(path, f"{before}\n\n{_shuffler_block(federation, own)}".encode())
    return folder / name


__all__ = [
    "NAME", "OwnBudget", "OwnConsents", "OwnData", "OwnKeeping", "OwnLimits", "OwnShuffler", "OwnSocket",
    "OwnSummedBudget", "Settings", "allow_shuffler",
]  # fmt: skip
