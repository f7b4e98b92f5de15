"""What a recipe can say: one class per table of the TOML file, one field per key.

Every field has a description, so the schema, the error messages and the table in the documentation come from here. The
tables of parts (method, mechanism, split and so on) stand beside the parts' code; the registry finds them. What
concerns several keys at once is in `checks`, and beside the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AfterValidator, BeforeValidator, Field

from sordino.errors import InvalidInput
from sordino.learning.columns import AnyColumn
from sordino.learning.datasets import KNOWN
from sordino.learning.losses import AnyLoss
from sordino.learning.metrics import AnyMetric
from sordino.learning.splits import AnySplit
from sordino.learning.tasks import CLASSES, LABELS, LearningTask, Regression
from sordino.learning.training_tables import Training
from sordino.methods.spec import MethodSpec, Target
from sordino.methods.stopping_rules import AnyStoppingRule, Patience, StoppingSpec, TargetAccuracy
from sordino.parts.registry import address_of, addresses, allowed_model, allowed_source, own_address
from sordino.parts.shipped import MODELS, SHIPPED
from sordino.parts.slot import Slot
from sordino.parts.strengths import Strength
from sordino.parts.tables import (
    Count,
    Inside,
    Natural,
    NonNegative,
    Numbers,
    Options,
    Positive,
    Positives,
    Says,
    Share,
    Texts,
    TomlTable,
    as_tuple,
    refusal,
)
from sordino.parts.toml import shown
from sordino.parts.words import nearest
from sordino.privacy.guarantee import Adjacency, Adversary
from sordino.privacy.terms import adjacency_named, adversary_named, plain
from sordino.report.words import listed


def _parsed(parse: Callable[[str], Adjacency | Adversary]) -> AfterValidator:
    """Text in any spelling that `parse` knows, kept in the plain one."""

    def check(text: str) -> str:
        try:
            return plain(parse(text))
        except InvalidInput as error:
            raise refusal(str(error)) from None

    return AfterValidator(check)


# --- data -------------------------------------------------------------------------------------------------------------

Origin = Literal["known", "npz", "table", "images", "function", "memory"]
MEMORY = "memory"  #: the source of data that is handed to `sordino.run`


def origin_of(source: str) -> Origin | None:
    """Where the examples of a source come from; None for a name that is not known."""
    if source in KNOWN:
        return "known"
    if source == MEMORY:
        return "memory"
    if own_address("data source", source):
        return "function"
    if source.lower().endswith(".npz"):
        return "npz"
    if source.lower().endswith(".csv"):
        return "table"
    return "images" if "/" in source or "\\" in source else None


def _regression(target: tuple[float, ...]) -> Regression | None:
    """The task of learning a number of this range; None where it is none."""
    try:
        return Regression(*target)
    except (TypeError, InvalidInput):
        return None


class Data(TomlTable):
    """The examples. Class lists and normalisation constants are public inputs: none is computed from private data."""

    source: Annotated[str, MinLen(1), AfterValidator(allowed_source)] = Field(
        description=f"a data set known by name ({', '.join(KNOWN)}); or your own: a path to an .npz or .csv file, or "
        "to a folder of images written with a slash (./scans), or 'package.module:Class', a data source or a function, "
        "or memory: data that is handed to sordino.run"
    )
    classes: Texts | None = Field(
        default=None, description="the names of all classes (own data): a public list, never read off the examples"
    )
    labels: Texts | None = Field(
        default=None,
        description="in place of classes, where a record may have several labels or none (own data): their names, "
        "which are columns of 0 and 1 (.csv), or the columns of y (.npz)",
    )
    target: Numbers | None = Field(
        default=None,
        description="in place of classes, where a number is learnt (own data): its public range [low, high], in your "
        "unit and never computed from the examples; values outside are refused",
    )
    label: str | int | None = Field(
        default=None, description="the label's column (.csv) by name, or by number where there is no header"
    )
    features: Annotated[tuple[str, ...] | tuple[int, ...], BeforeValidator(as_tuple), MinLen(1)] | None = Field(
        default=None, description="the columns to learn from (.csv), in order; all others than the label if left out"
    )
    columns: Annotated[dict[str, AnyColumn], MinLen(1), Says("a table with a table for each column")] | None = Field(
        default=None,
        description="the columns to learn from (.csv), in order, each with what its cells become: numbers, categories, "
        "text and gaps (docs/tables.md); in place of features, mean and std",
    )
    test: str | Inside | None = Field(
        default=None,
        description="the test examples' file or folder (.csv, images), or the fraction to hold out, by a hash of each "
        "example",
    )
    channels: Literal[1, 3] | None = Field(default=None, description="of images: 1 (grey) or 3 (colour); 3 if left out")
    mean: Numbers | None = Field(
        default=None,
        description="what is subtracted from own data, in its own units (pixels 0 to 255): one number, or one per "
        "channel or feature; public constants, never computed from the examples",
    )
    std: Positives | None = Field(
        default=None, description="what own data is divided by: as many as mean, public constants as well"
    )
    arguments: Options | None = Field(
        default=None, description="the keys of a 'package.module:Class', or a function's arguments"
    )
    validation: Share = Field(default=0.0, description="share of every client's examples set aside for tuning")
    train_limit: Natural = Field(default=0, description="use only the first n training examples (0: all)")
    test_limit: Natural = Field(default=0, description="use only the first n test examples (0: all)")

    @property
    def origin(self) -> Origin | None:
        """Where the examples come from; None for a name that is not known."""
        return origin_of(self.source)

    @property
    def task(self) -> LearningTask | None:
        """What is learnt; None where the examples come with it (of a function, or in memory), or the range is none."""
        said = self.classes is not None or self.labels is not None or self.target is not None
        if self.origin == "function" or (self.origin == "memory" and not said):
            return None
        if self.target is not None:
            return _regression(self.target)
        return CLASSES if self.labels is None else LABELS

    @property
    def names(self) -> tuple[str, ...]:
        """What the network's scores stand for, of own data: the classes, the labels, or the one target."""
        if self.target is not None:
            return (self.label if isinstance(self.label, str) else "target",)
        return self.labels or self.classes or ()

    @property
    def own_columns(self) -> bool:
        """Whether a column's kind is somebody's own."""
        return any(rule.kind not in SHIPPED["column"] for rule in (self.columns or {}).values())

    @property
    def examples(self) -> int | None:
        """The number of training examples where it is public: that of a known set, limited as the recipe says."""
        if self.source not in KNOWN:
            return None
        whole = KNOWN[self.source].sizes[0]
        return min(whole, self.train_limit) if self.train_limit else whole

    @property
    def known_classes(self) -> int:
        """The number of classes of a known set."""
        return len(KNOWN[self.source].classes)


# --- model and clients ------------------------------------------------------------------------------------------------


START = "as-built, fresh, or the path of a .safetensors file"


def _start(text: str) -> str:
    if text not in ("as-built", "fresh") and not text.endswith(".safetensors"):
        raise refusal(f"got {shown(text)}; allowed: {START}")
    return text


class Model(TomlTable):
    """The network that is trained."""

    name: Annotated[str, MinLen(1), AfterValidator(allowed_model)] = Field(
        description="a model known by name (docs/models.md lists them), or your own as 'package.module:Class'"
    )
    options: Options = Field(default_factory=dict, description="the model's options, such as { hidden = [64] }")
    start: Annotated[str, AfterValidator(_start), Says(START)] | None = Field(
        default=None,
        description="where training starts: as-built (with the weights that the class brings or draws), fresh (drawn "
        "anew by the seed), or a .safetensors file with all parameters and buffers; if left out, as-built for your "
        "own class and fresh for models known by name",
    )
    loss: AnyLoss | None = Field(
        default=None,
        description="what it learns by; if left out, cross-entropy of classes, binary-cross-entropy of labels, mse of "
        "a number. Your own is 'package.module:function', or a class that is made with options",
    )
    per_record: bool = Field(
        default=False,
        description="you declare that your own network, loss and kinds of columns compute each record by itself: they "
        "keep nothing from one record to the next and draw nothing at random. No test can show it. Of own code nothing "
        "is proven even so: one record may end it",
    )
    buffers: Literal["refuse", "local", "release"] = Field(
        default="refuse",
        description="batch-norm statistics: refuse models that have them, keep them with each client, or release them",
    )

    @property
    def is_own(self) -> bool:
        """Whether it is somebody's own class."""
        return self.name not in MODELS and own_address("model", self.name) is not None

    @property
    def own_loss(self) -> bool:
        """Whether the loss is somebody's own."""
        return self.loss is not None and self.loss.kind not in SHIPPED["loss"]

    @property
    def starts_fresh(self) -> bool:
        """Whether the seed draws the parameters anew; otherwise the model keeps its own, or those of a file."""
        return self.start == "fresh" or (self.start is None and not self.is_own)

    @property
    def start_file(self) -> str | None:
        """The file that training starts from."""
        return None if self.start in (None, "as-built", "fresh") else self.start


class BudgetRule(TomlTable):
    """What each client's ledger enforces: never the same thing as a mechanism's epsilon."""

    limit: Strength = Field(description="the limit of each client's ledger, above which nothing may leave")
    delta: Share = Field(default=0.0, description="the delta at which the ledger counts")
    basis: Literal["proven", "claimed"] = Field(
        default="proven",
        description="which epsilon is counted; claimed is for simulations, and this line is the consent to it",
    )
    adjacency: Annotated[
        str, _parsed(adjacency_named), Says(f"one of {', '.join(plain(adjacency) for adjacency in Adjacency)}")
    ] = Field(default="client", description="what is hidden")
    adversary: Annotated[str, _parsed(adversary_named), Says("server, model-reader, shuffled(N) or summed(N)")] = Field(
        default="server", description="from whom it is hidden: server, model-reader, shuffled(N) or summed(N)"
    )


class Clients(TomlTable):
    """What the clients of the federation spend, and what they allow."""

    epsilon: Strength | None = Field(
        default=None,
        description="the mechanism's strength for each client; left out where the mechanism takes none",
    )
    allow_unproven: Texts = Field(
        default=(),
        description="kinds of release that may leave without a proof although there is a budget, by their `what`",
    )
    budget: BudgetRule | None = Field(
        default=None,
        description="what each client's ledger enforces; without it nothing is refused, and the statement says what "
        "was spent",
    )


# --- rounds, evaluation, and the whole --------------------------------------------------------------------------------


class Rounds(TomlTable):
    """How long the federation runs, and when a round counts."""

    count: Annotated[int, Ge(1), Le(100_000)] = Field(default=10, description="number of rounds, at most")
    target_accuracy: Annotated[float, Ge(0), Le(1)] = Field(default=0.0, description="stop once reached (0: never)")
    patience: Natural = Field(default=0, description="stop after so many evaluations without improvement (0: never)")
    stop: AnyStoppingRule | None = Field(default=None, description="another rule for when to stop")
    stop_on: Literal["validation", "test"] = Field(
        default="validation", description="which examples decide about stopping; a test set that does so must be public"
    )
    quorum: Count = Field(default=1, description="fewest reports that make a round count")
    deadline: NonNegative = Field(
        default=0.0, description="seconds a round, or each step of a secure sum, may wait (0: no limit)"
    )

    @property
    def stopping_rules(self) -> list[StoppingSpec]:
        """The rules by which what a model scores may end the run."""
        found: list[StoppingSpec] = [TargetAccuracy(accuracy=self.target_accuracy)] if self.target_accuracy else []
        found += [Patience(evaluations=self.patience)] if self.patience else []
        return [*found, self.stop] if self.stop is not None else found


class PrivateFigures(TomlTable):
    """How good the model is on records that clients set aside: what they report of it is noisy counts."""

    share: Annotated[float, Gt(0), Lt(1)] = Field(
        default=0.2,
        description="share of records that every client sets aside and never trains on, each by a public hash of "
        "itself",
    )
    every: Count = Field(default=5, description="evaluate after every n-th round, and after the last")
    figures: Texts = Field(
        default=(),
        description="what is counted: of classes accuracy, recall (of each class), f1 (of each class) and loss; of "
        "labels label-accuracy; of a number mae. The first of these if left out; each more costs accuracy of the "
        "others",
    )
    loss_bound: Positive = Field(default=4.0, description="a record's loss is cut to this, where it is counted")
    target: Target = Field(
        description="what all evaluations of the run together are proven to protect, for one record added or removed, "
        "against the server"
    )

    def due(self, round: int, rounds: int) -> bool:
        """Whether the model is evaluated after this one of so many rounds."""
        return 1 <= round <= rounds and (round % self.every == 0 or round == rounds)

    def times(self, rounds: int) -> int:
        """How often the model is evaluated in so many rounds."""
        return -(-rounds // self.every)


class Evaluation(TomlTable):
    """When the model is evaluated, and by what."""

    every: Count = Field(default=1, description="evaluate after every n-th round, and after the last")
    metric: AnyMetric | None = Field(
        default=None,
        description="what the run is judged by, when to stop included; if left out, accuracy of classes, "
        "average-precision of labels, mae of a number",
    )
    private: PrivateFigures | None = Field(
        default=None,
        description="evaluate on records that clients set aside, by noisy counts that they release "
        "(docs/private-evaluation.md)",
    )


def _attack(name: str) -> str:
    """The name of an attack; one's own only where it may be named."""
    if address_of("attack", name) is None:
        known = list(addresses("attack"))
        raise refusal(f"got {shown(name)}; {nearest(name, known)}allowed: {listed(known)}, or package.module:Class")
    return name


class AttackChoice(TomlTable):
    """Attacks on the reports of a simulation: what somebody who sees them can reconstruct or infer."""

    what: Annotated[
        tuple[Annotated[str, AfterValidator(_attack)], ...],
        BeforeValidator(as_tuple),
        MinLen(1),
        Says(f"a list of {', '.join(SHIPPED['attack'])}, or of your own as package.module:Class"),
    ] = Field(default=tuple(SHIPPED["attack"]), description="which attacks; all that are shipped if left out")
    thorough: bool = Field(
        default=False, description="more restarts, steps and shadow models than fit into a few minutes"
    )


def _one_line(text: str) -> str:
    if text.splitlines() not in ([], [text]):
        raise refusal(f"got {shown(text)}; allowed: text on one line")
    return text


Line = Annotated[str, AfterValidator(_one_line)]
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$"


class Sections(TomlTable):
    """All tables of a recipe, each right by itself; whether they fit each other is for `checks` to say."""

    name: Annotated[
        str,
        Field(pattern=NAME),
        Says("letters, digits, - and _, at most 100 of them, beginning with a letter or digit"),
    ] = Field(description="names the run's folder")
    title: Line | None = Field(default=None, description="what people read instead of the name, such as on a web page")
    summary: Line = Field(default="", description="what it is, in one line")
    seed: Annotated[int, Ge(0), Le(2**64 - 1), Says("a whole number from 0 to 2^64 - 1")] = Field(
        default=1, description="decides every random choice of a simulation"
    )
    paper: Line = Field(default="", description="which paper's setting this is, if any")
    data: Data = Field(description="the examples")
    split: AnySplit = Field(description="who holds which examples")
    model: Model = Field(description="the network that is trained")
    training: Training = Field(default=Training(), description="how a client trains in one round")
    clients: Clients = Field(default=Clients(), description="what the clients spend, and what they allow")
    method: Annotated[MethodSpec, Slot("method")] = Field(description="the algorithm")
    rounds: Rounds = Field(default=Rounds(), description="how long the federation runs, and when a round counts")
    evaluation: Evaluation = Field(default=Evaluation(), description="when the model is evaluated")
    attacks: AttackChoice | None = Field(
        default=None,
        description="attack the run once `sordino run` or `sordino sweep` has ended it; for simulations "
        "(docs/attacks.md)",
    )

    @property
    def number_of_clients(self) -> int:
        """How many clients the split makes."""
        return self.split.number
