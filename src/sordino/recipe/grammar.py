"""What a recipe can say: one class per table of the TOML file, one field per key.

Every field has a description, so the schema, the error messages and the table in the documentation come from here. A
table that has several forms is a union, told apart by its `kind` or `name`; a new form is a new class in that union.
What concerns several keys at once is in `checks`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from sordino.errors import InvalidInput
from sordino.learning.datasets import KNOWN
from sordino.learning.partition import BETA_RANGE, MAX_CLIENTS
from sordino.privacy.guarantee import Adjacency, Adversary
from sordino.privacy.terms import adjacency_named, adversary_named, plain
from sordino.recipe.toml import shown
from sordino.recipe.tree import Says


class Part(BaseModel):
    """A table of a recipe: immutable, of exact types (no text for numbers), without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)

    inline: ClassVar[bool] = False  #: whether it is written on one line: epsilon = { linear = [2, 8] }


def refusal(text: str) -> PydanticCustomError:
    """A validator's own complete sentence, which is shown as it is."""
    return PydanticCustomError("refusal", "{text}", {"text": text})


# --- kinds of values --------------------------------------------------------------------------------------------------


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _rising(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] > pair[1]:
        raise refusal(f"got [{pair[0]:g}, {pair[1]:g}]; allowed: [low, high] with low <= high")
    return pair


def _plain_values(value: Any) -> Any:
    """Only what TOML and JSON both hold: a recipe must mean the same wherever it is read."""
    if isinstance(value, dict):
        return {key: _plain_values(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_values(inner) for inner in value]
    if isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise refusal(f"got {value!r} in it; allowed: text, finite numbers, true, false, and lists and tables of these")


def _parsed(parse: Callable[[str], Adjacency | Adversary]) -> AfterValidator:
    """Text in any spelling that `parse` knows, kept in the plain one."""

    def check(text: str) -> str:
        try:
            return plain(parse(text))
        except InvalidInput as error:
            raise refusal(str(error)) from None

    return AfterValidator(check)


Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
ClipNorm = Annotated[float, Ge(1e-30), Le(1e30), Says("a number from 1e-30 to 1e30")]
NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Lt(1)]
Probability = Annotated[float, Gt(0), Le(1)]
Inside = Annotated[float, Gt(0), Lt(1)]
ClientCount = Annotated[int, Ge(1), Le(MAX_CLIENTS)]

Texts = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Numbers = Annotated[tuple[float, ...], BeforeValidator(_as_tuple), MinLen(1)]
Positives = Annotated[tuple[Positive, ...], BeforeValidator(_as_tuple), MinLen(1)]
Table = Annotated[dict[str, Any], AfterValidator(_plain_values)]


# --- one number per client --------------------------------------------------------------------------------------------


class Uniform(Part):
    """Each client's number drawn evenly between two, from the seed, rounded to two decimals."""

    inline: ClassVar[bool] = True

    uniform: Annotated[
        tuple[Annotated[float, Ge(0.01)], Annotated[float, Ge(0.01)]],
        BeforeValidator(_as_tuple),
        AfterValidator(_rising),
        Says("[low, high], both at least 0.01"),
    ] = Field(description="drawn evenly between these two, from the seed, rounded to two decimals")


class Linear(Part):
    """Evenly spaced numbers, the first client's first."""

    inline: ClassVar[bool] = True

    linear: Annotated[tuple[Positive, Positive], BeforeValidator(_as_tuple), Says("[first, last], both above 0")] = (
        Field(description="evenly spaced from the first client's to the last one's")
    )


class Shares(Part):
    """A few numbers, each for its share of the clients."""

    inline: ClassVar[bool] = True

    values: Positives = Field(description="the numbers that occur")
    shares: Positives = Field(description="which share of the clients has each of them: as many as values, 1 together")


def _strength_form(value: Any) -> str | None:
    match value:
        case Uniform() | {"uniform": _}:
            return "uniform"
        case Linear() | {"linear": _}:
            return "linear"
        case Shares() | {"values": _} | {"shares": _}:
            return "shares"
        case dict() | BaseModel():
            return None
        case list() | tuple():
            return "list"
    return "number"


Strength = Annotated[
    Annotated[Positive, Tag("number")]
    | Annotated[Positives, Tag("list")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[Linear, Tag("linear")]
    | Annotated[Shares, Tag("shares")],
    Discriminator(_strength_form),
    Says(
        "a number above 0 for all clients, a list with one for each, { uniform = [low, high] }, "
        "{ linear = [first, last] } or { values = [...], shares = [...] }"
    ),
]


def _layers_form(value: Any) -> str:
    return "layers" if isinstance(value, dict) else "number"


Radius = Annotated[
    Annotated[Positive, Tag("number")] | Annotated[dict[str, Positive], MinLen(1), Tag("layers")],
    Discriminator(_layers_form),
]
Centre = Annotated[
    Annotated[float, Tag("number")] | Annotated[dict[str, float], MinLen(1), Tag("layers")], Discriminator(_layers_form)
]


# --- data -------------------------------------------------------------------------------------------------------------

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

Origin = Literal["known", "npz", "table", "images", "function"]


def origin_of(source: str) -> Origin | None:
    """Where the examples of a source come from; None for a name that is not known."""
    if source in KNOWN:
        return "known"
    if _IMPORT_PATH.fullmatch(source):
        return "function"
    if source.lower().endswith(".npz"):
        return "npz"
    if source.lower().endswith(".csv"):
        return "table"
    return "images" if "/" in source or "\\" in source else None


class Data(Part):
    """The examples. Class lists and normalisation constants are public inputs: none is computed from private data."""

    source: Annotated[str, MinLen(1)] = Field(
        description=f"a data set known by name ({', '.join(KNOWN)}); or your own: a path to an .npz or .csv file, or "
        "to a folder of images written with a slash (./scans), or 'package.module:function'"
    )
    classes: Texts | None = Field(
        default=None, description="the names of all classes (own data): a public list, never read off the examples"
    )
    label: str | int | None = Field(
        default=None, description="the label's column (.csv) by name, or by number where there is no header"
    )
    features: Annotated[tuple[str, ...] | tuple[int, ...], BeforeValidator(_as_tuple), MinLen(1)] | None = Field(
        default=None, description="the columns to learn from (.csv), in order; all others than the label if left out"
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
    arguments: Table | None = Field(default=None, description="keyword arguments of a 'package.module:function'")
    validation: Share = Field(default=0.0, description="share of every client's examples set aside for tuning")
    train_limit: Natural = Field(default=0, description="use only the first n training examples (0: all)")
    test_limit: Natural = Field(default=0, description="use only the first n test examples (0: all)")

    @property
    def origin(self) -> Origin | None:
        """Where the examples come from; None for a name that is not known."""
        return origin_of(self.source)

    @property
    def examples(self) -> int | None:
        """The number of training examples where it is public: that of a known set, limited as the recipe says."""
        if self.source not in KNOWN:
            return None
        whole = KNOWN[self.source].sizes[0]
        return min(whole, self.train_limit) if self.train_limit else whole


# --- split ------------------------------------------------------------------------------------------------------------

AtLeast = Annotated[Natural, Field(description="fewest examples a client may hold (0 allows clients without any)")]


class IidSplit(Part):
    """All examples dealt at random, as evenly as possible."""

    kind: Literal["iid"] = Field(default="iid", description="dealt at random, as evenly as possible")
    clients: ClientCount = Field(description="number of clients")
    at_least: AtLeast = 1

    @property
    def number(self) -> int:
        return self.clients


class SizesSplit(Part):
    """As many examples for each client as its size says, chosen at random."""

    kind: Literal["sizes"] = Field(default="sizes", description="as many for each client as its size says")
    sizes: Annotated[tuple[Natural, ...], BeforeValidator(_as_tuple), MinLen(1)] = Field(
        description="number of examples of each client"
    )
    at_least: AtLeast = 1

    @property
    def number(self) -> int:
        return len(self.sizes)


class DirichletSplit(Part):
    """Label skew: clients' shares of every class are Dirichlet(beta, ..., beta)."""

    kind: Literal["dirichlet"] = Field(default="dirichlet", description="label skew: Dirichlet shares of every class")
    clients: ClientCount = Field(description="number of clients")
    beta: Annotated[float, Ge(BETA_RANGE[0]), Le(BETA_RANGE[1])] = Field(
        description="small: a class is with few clients; large: nearly the same mixture everywhere"
    )
    at_least: AtLeast = 1

    @property
    def number(self) -> int:
        return self.clients


class ShardsSplit(Part):
    """Shards of one label each, so many to every client."""

    kind: Literal["shards"] = Field(default="shards", description="shards of one label each, so many to every client")
    clients: ClientCount = Field(description="number of clients")
    labels_per_client: Count = Field(description="shards dealt to each client, so its labels at most")

    @property
    def number(self) -> int:
        return self.clients


class FilesSplit(Part):
    """Who holds what as written down: one file of indices per client."""

    kind: Literal["files"] = Field(default="files", description="as written down, one file per client")
    files: Annotated[tuple[str, ...], BeforeValidator(_as_tuple), MinLen(1)] = Field(
        description="one file per client: rows of the source, from 0, as a .npy array or as text with one a line"
    )
    at_least: AtLeast = 1

    @property
    def number(self) -> int:
        return len(self.files)


Split = Annotated[IidSplit | SizesSplit | DirichletSplit | ShardsSplit | FilesSplit, Field(discriminator="kind")]


# --- model and training -----------------------------------------------------------------------------------------------


class Model(Part):
    """The network that is trained."""

    name: Annotated[str, MinLen(1)] = Field(
        description="a model known by name (docs/models.md lists them), or your own as 'package.module:Class'"
    )
    options: Table = Field(default_factory=dict, description="the model's options, such as { hidden = [64] }")
    buffers: Literal["refuse", "local", "release"] = Field(
        default="refuse",
        description="batch-norm statistics: refuse models that have them, keep them with each client, or release them",
    )


LearningRate = Annotated[Positive, Field(description="learning rate")]
Momentum = Annotated[Share, Field(description="momentum")]
WeightDecay = Annotated[NonNegative, Field(description="L2 regularisation, added to the gradient")]
Decayed = Annotated[
    Annotated[tuple[str, ...], BeforeValidator(_as_tuple), MinLen(1)] | None,
    Field(description="which tensors weight_decay is for, by patterns such as conv*.weight; all if left out"),
]
Decay = Annotated[NonNegative, Field(description="the learning rate of step t is lr / (1 + decay * t)")]


class Sgd(Part):
    """Stochastic gradient descent."""

    name: Literal["sgd"] = Field(default="sgd", description="stochastic gradient descent")
    lr: LearningRate
    momentum: Momentum = 0.0
    nesterov: bool = Field(default=False, description="Nesterov's momentum")
    weight_decay: WeightDecay = 0.0
    decayed: Decayed = None
    decay: Decay = 0.0


class Adam(Part):
    """Adam, without AMSGrad."""

    name: Literal["adam"] = Field(default="adam", description="Adam, without AMSGrad")
    lr: LearningRate
    beta1: Share = Field(default=0.9, description="decay of the gradient's mean")
    beta2: Share = Field(default=0.999, description="decay of the squared gradient's mean")
    epsilon: Positive = Field(default=1e-8, description="added to the root; nothing to do with privacy")
    weight_decay: WeightDecay = 0.0
    decayed: Decayed = None
    decay: Decay = 0.0


class RmsProp(Part):
    """RMSprop, not centred."""

    name: Literal["rmsprop"] = Field(default="rmsprop", description="RMSprop, not centred")
    lr: LearningRate
    rho: Share = Field(default=0.99, description="decay of the squared gradient's mean")
    epsilon: Positive = Field(default=1e-8, description="added to the root; nothing to do with privacy")
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 0.0
    decayed: Decayed = None
    decay: Decay = 0.0


Optimizer = Annotated[Sgd | Adam | RmsProp, Field(discriminator="name")]


def _one_epoch_unless_steps(earlier: dict[str, Any]) -> int | None:
    return 1 if earlier.get("steps") is None else None


class Augmentation(Part):
    """Images changed at random in every step, by numbers from the client's own stream."""

    inline: ClassVar[bool] = True

    rotation: Annotated[float, Ge(0), Lt(180)] = Field(default=0.0, description="turned by up to so many degrees")
    shift: Share = Field(default=0.0, description="moved by up to this part of each side")
    zoom: Share = Field(default=0.0, description="scaled by up to this part")
    flip: bool = Field(default=False, description="mirrored left to right, every other time")


class Training(Part):
    """How a client trains in one round. Of silo-dp, which draws batches of its own, the optimizer alone concerns."""

    steps: Count | None = Field(default=None, description="local steps per round; or give epochs")
    epochs: Count | None = Field(
        default_factory=_one_epoch_unless_steps, description="local epochs per round; 1 if neither is given"
    )
    batch_size: Natural = Field(default=10, description="records per step (0: all at once)")
    shuffle: bool = Field(default=True, description="a new order of the records in every epoch")
    drop_last: bool = Field(default=False, description="leave out a last batch that is not full")
    augmentation: Augmentation | None = Field(default=None, description="random changes of images; none if left out")
    optimizer: Optimizer = Field(default=Sgd(lr=0.1), description="the rule of each step")


# --- clients ----------------------------------------------------------------------------------------------------------


class BudgetRule(Part):
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


class Clients(Part):
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


# --- parts of a method ------------------------------------------------------------------------------------------------


class SelectAll(Part):
    """Every client, every round."""

    kind: Literal["all"] = Field(default="all", description="every client, every round")

    def asked(self, clients: int) -> int:
        """How many of so many clients are asked, at most."""
        return clients


class SelectCount(Part):
    """k clients, chosen by the server anew in every round."""

    kind: Literal["count"] = Field(default="count", description="k clients, chosen anew in every round")
    k: Count = Field(description="how many")

    def asked(self, clients: int) -> int:
        """How many of so many clients are asked, at most."""
        return min(self.k, clients)


class SelectFraction(Part):
    """A fixed fraction of the clients, chosen by the server anew in every round."""

    kind: Literal["fraction"] = Field(
        default="fraction", description="a fraction of the clients, chosen anew in every round"
    )
    p: Probability = Field(description="which fraction: max(1, round(p * clients)) are asked")

    def asked(self, clients: int) -> int:
        """How many of so many clients are asked, at most."""
        return max(1, math.floor(self.p * clients + 0.5))


class SelectProbability(Part):
    """Each client with the same probability, independently of the others."""

    kind: Literal["probability"] = Field(default="probability", description="each client by itself, with probability p")
    p: Probability = Field(description="the probability")

    def asked(self, clients: int) -> int:
        """How many of so many clients are asked, at most."""
        return clients


Selection = Annotated[SelectAll | SelectCount | SelectFraction | SelectProbability, Field(discriminator="kind")]


def _said(key: str) -> BeforeValidator:
    """A table with a single form as yet must say it all the same: the recipe stays valid when there are more."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and key not in value:
            raise PydanticCustomError("unsaid", "{key}", {"key": key})
        return value

    return BeforeValidator(check)


class ScopeAll(Part):
    """All tensors of the model."""

    kind: Literal["all"] = Field(default="all", description="all tensors of the model")


Scope = Annotated[ScopeAll, _said("kind")]


class ScopeLayers(Part):
    """One layer a round, from the output layer backwards, each for as many rounds (CLDP-Single-Layer)."""

    kind: Literal["layers"] = Field(
        default="layers", description="one layer a round, from the last backwards, each for as many rounds"
    )


class ScopeProportional(Part):
    """One layer a round, from the output layer backwards, rounds and budget by size (alpha-CLDP-Fed)."""

    kind: Literal["proportional"] = Field(
        default="proportional",
        description="one layer a round, from the last backwards, rounds and budget in proportion to its size",
    )
    cycles: Count = Field(default=1, description="how often all layers are gone through; rounds.count is a multiple")


LayerScope = Annotated[ScopeProportional | ScopeLayers | ScopeAll, Field(discriminator="kind")]


class FixedRange(Part):
    """Where values are clipped to before they are randomised: public, and the same in every round."""

    kind: Literal["fixed"] = Field(default="fixed", description="the same in every round")
    radius: Radius = Field(description="of the interval, ball or sphere: one number, or a table by layer")
    centre: Centre = Field(default=0.0, description="of the interval: one number, or a table by layer")


Range = Annotated[FixedRange, _said("kind")]


class AdaptiveRange(Part):
    """A range by layer that the server takes from its own noisy mean after each round (LDP-FL): nothing new is lost."""

    kind: Literal["adaptive"] = Field(default="adaptive", description="by layer, from the last noisy mean")
    radius: Radius | None = Field(
        default=None,
        description="in the first round: one number, or a table by layer; spans the initial weights if left out",
    )
    centre: Centre = Field(default=0.0, description="in the first round, with radius: one number, or a table by layer")
    slack: Positive = Field(default=1.0, description="every radius taken from a mean is multiplied by it")
    quantile: Probability = Field(
        default=1.0, description="share of a layer's values that its range spans (1: from the smallest to the largest)"
    )


LayerRange = Annotated[FixedRange | AdaptiveRange, Field(discriminator="kind")]


class DirectChannel(Part):
    """Each report goes straight to the server."""

    kind: Literal["direct"] = Field(default="direct", description="each report goes straight to the server")


class RelayChannel(Part):
    """All reports go to a relay, which hands k of them to the server without names; it sees everything itself."""

    kind: Literal["relay"] = Field(
        default="relay", description="all reports go to a trusted relay, which hands on k of them without names"
    )
    k: Count = Field(description="how many are handed on; those asked spend their budget all the same")


class SummedChannel(Part):
    """Secure aggregation: the server learns the sum of the reports of each epsilon, and no report by itself."""

    kind: Literal["summed"] = Field(default="summed", description="in secure sums: the server sees no single report")
    threshold: Annotated[float, Ge(0.5), Lt(1), Says("a share from 0.5 to below 1")] = Field(
        default=2 / 3,
        description="more than this share of those asked must stay to the end, or nothing is revealed",
    )
    digits: Annotated[int, Ge(0), Le(18)] = Field(default=10, description="decimals kept of values that are reals")

    def least(self, asked: int) -> int:
        """How many of so many that are asked are in a sum, at least: with fewer, nothing is revealed."""
        return math.floor(self.threshold * asked + 1e-9) + 1


Channel = Annotated[DirectChannel | RelayChannel | SummedChannel, Field(discriminator="kind")]


class Delay(Part):
    """How long the random delays of LDP-FL's Algorithm 3 would take: simulated beside the run, in seconds."""

    inline: ClassVar[bool] = True

    latency: Strength = Field(description="T that clients propose; the median is agreed on")
    computing: Strength = Field(default=0.0001, description="how long clients train")
    communication: Strength = Field(default=0.0001, description="how long a report of theirs takes")


class ShuffledChannel(Part):
    """A trusted shuffler takes the names off the reports and mixes those of equal epsilon."""

    kind: Literal["shuffled"] = Field(default="shuffled", description="through a trusted shuffler of one-bit reports")
    granularity: Literal["parameter", "model"] = Field(
        description="what is mixed: every single parameter by itself, or whole reports"
    )
    at_least: Natural = Field(
        default=0,
        description="fewest reports of one epsilon that are passed on, which is the crowd that the statement counts on "
        "(0: all that are asked, or 1 where that differs from round to round)",
    )
    delay: Delay | None = Field(default=None, description="delays to simulate; none if left out")


def _address(text: str) -> str:
    if text and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", text):
        raise refusal(f"got {shown(text)}; allowed: an address such as https://shuffler.example:8470")
    return text


def _public_key(text: str) -> str:
    if text and not re.fullmatch(r"[0-9a-f]{64}", text):
        raise refusal(f"got {shown(text)}; allowed: 64 hexadecimal digits, as `sordino shuffler keys` prints them")
    return text


class ShufflerChannel(Part):
    """A shuffler service: clients seal every value to the server and send it to somebody else, who mixes them."""

    kind: Literal["shuffler"] = Field(
        default="shuffler", description="through a shuffler service, every value sealed to the server"
    )
    at_least: Annotated[int, Ge(2)] = Field(
        description="whole reports of one epsilon that a batch must hold, or nothing of it leaves: the crowd that the "
        "statement counts on"
    )
    url: Annotated[str, AfterValidator(_address)] = Field(
        default="",
        description="the shuffler's address, which clients must have allowed; a simulation mixes by itself and needs "
        "none",
    )
    key: Annotated[str, AfterValidator(_public_key)] = Field(
        default="", description="the server's public key, 64 hexadecimal digits; a simulation needs none"
    )
    group: Annotated[int, Ge(1), Le(2**16)] = Field(
        default=1, description="values in one envelope: g of them are one linked message of g times a bit's epsilon"
    )
    seconds: Annotated[float, Gt(0), Le(604_800)] = Field(
        default=600.0, description="how long the shuffler waits for those who were asked"
    )


BitChannel = Annotated[DirectChannel | ShuffledChannel | ShufflerChannel | SummedChannel, Field(discriminator="kind")]


class Mean(Part):
    """Every report counts alike."""

    kind: Literal["mean"] = Field(default="mean", description="every report counts alike")


class BySamples(Part):
    """Reports weighed by clients' numbers of examples, which thereby leave the clients."""

    kind: Literal["samples"] = Field(
        default="samples", description="weighed by sample counts, which thereby are released"
    )


class ByBudget(Part):
    """Reports weighed in proportion to clients' epsilons."""

    kind: Literal["budget"] = Field(default="budget", description="weighed in proportion to clients.epsilon")


class InverseVariance(Part):
    """Reports weighed by the inverse of their noise's variance."""

    kind: Literal["inverse-variance"] = Field(
        default="inverse-variance", description="weighed by the inverse of the noise"
    )


class SignAggregation(Part):
    """The majority of votes for each value, times a step."""

    kind: Literal["sign"] = Field(default="sign", description="the majority of votes for each value")
    step: Positive = Field(description="how far each value moves along the majority")


class TrimmedMean(Part):
    """The mean of each value without the largest and the smallest reports: few hostile reports move it little."""

    kind: Literal["trimmed-mean"] = Field(
        default="trimmed-mean", description="robust: of each value, the mean without the largest and the smallest"
    )
    share: Annotated[float, Gt(0), Lt(0.5), Says("a share above 0 and below 0.5")] = Field(
        default=0.2, description="share of the reports left out at each end, rounded up; at least one report is left"
    )


class Median(Part):
    """The median of each value."""

    kind: Literal["median"] = Field(default="median", description="robust: the median of each value")


class NormFilter(Part):
    """The mean of the reports that are not much farther from the median than most."""

    kind: Literal["norm-filter"] = Field(
        default="norm-filter", description="robust: the mean without reports that are far from the median"
    )
    factor: Annotated[float, Gt(1), Says("a number > 1")] = Field(
        default=1.5, description="how far a report may be from the median of all, in units of the median distance"
    )


class Agreement(Part):
    """The trimmed mean without the reports that point least where others do: for reports that are nearly all noise."""

    kind: Literal["agreement"] = Field(
        default="agreement",
        description="robust: the trimmed mean without reports that point least where others do",
    )
    share: Annotated[float, Gt(0), Lt(0.5), Says("a share above 0 and below 0.5")] = Field(
        default=0.2, description="share of the reports left out, and trimmed at each end of the rest, rounded up"
    )


ROBUST = (TrimmedMean, Median, NormFilter, Agreement)  #: rules that look at single reports

Aggregation = Annotated[
    Mean | BySamples | ByBudget | InverseVariance | SignAggregation | TrimmedMean | Median | NormFilter | Agreement,
    Field(discriminator="kind"),
]
PartAggregation = Annotated[  # whole models point the same way, and layers come in turn: no agreement to speak of
    Mean | BySamples | ByBudget | InverseVariance | SignAggregation | TrimmedMean | Median | NormFilter,
    Field(discriminator="kind"),
]


# --- mechanisms -------------------------------------------------------------------------------------------------------


class MechanismSpec(Part):
    """What all mechanisms' tables share: what the checks ask them."""

    noisy: ClassVar[bool] = True

    @property
    def takes_epsilon(self) -> bool:
        """Whether `clients.epsilon` is its strength."""
        return True

    @property
    def clips(self) -> bool:
        """Whether values are brought into `method.range` first."""
        return True

    @property
    def around_zero(self) -> bool:
        """Whether the range is a ball, a sphere or coded integers, and so has no centre."""
        return False

    @property
    def one_radius(self) -> bool:
        """Whether one radius serves all layers."""
        return self.around_zero


class NoMechanism(MechanismSpec):
    """The values as they are: no clipping, no noise, no protection."""

    name: Literal["none"] = Field(default="none", description="values leave as they are: no protection")
    noisy: ClassVar[bool] = False

    @property
    def takes_epsilon(self) -> bool:
        return False

    @property
    def clips(self) -> bool:
        return False


class ClipOnlySpec(MechanismSpec):
    """Clipped and not randomised: what clipping alone costs."""

    name: Literal["clip-only"] = Field(default="clip-only", description="clipped, not randomised: no protection")
    norm: Literal["box", "l1", "l2"] = Field(default="box", description="each value, or the vector's L1 or L2 norm")
    noisy: ClassVar[bool] = False

    @property
    def takes_epsilon(self) -> bool:
        return False

    @property
    def around_zero(self) -> bool:
        return self.norm != "box"


class TwoPointSpec(MechanismSpec):
    """One of two values for each coordinate (LDP-FL)."""

    name: Literal["two-point"] = Field(default="two-point", description="one bit per value; epsilon is per value")


class LaplaceSpec(MechanismSpec):
    """Laplace noise (WebFed)."""

    name: Literal["laplace"] = Field(
        default="laplace", description="Laplace noise; epsilon is per value, or per vector with l1"
    )
    norm: Literal["box", "l1"] = Field(default="box", description="each value, or the vector's L1 norm")
    records: Annotated[int, Ge(1), Le(10**9)] = Field(
        default=1,
        description="above 1: the reading that divides the noise by so many records; its epsilon is claimed only",
    )

    @property
    def around_zero(self) -> bool:
        return self.norm != "box"


class GaussianSpec(MechanismSpec):
    """Gaussian noise, calibrated honestly, by a sigma of one's own, or by a paper's formula."""

    name: Literal["gaussian"] = Field(default="gaussian", description="Gaussian noise")
    norm: Literal["box", "l2"] = Field(default="box", description="each value, or the vector's L2 norm")
    calibration: Literal["analytic", "sigma", "eq4"] = Field(
        default="analytic",
        description="analytic: one upload is proven (epsilon, delta); sigma: as given; eq4: by personalised LDP-FL, "
        "claimed",
    )
    delta: Inside | None = Field(default=None, description="delta of the calibration (analytic, eq4)")
    sigma: Positive | None = Field(default=None, description="standard deviation of the noise (sigma)")
    sampling: Inside | None = Field(default=None, description="sampling probability q of Eq. 4 (eq4)")
    rounds: Count | None = Field(default=None, description="number of rounds R of Eq. 4 (eq4)")
    reading: Literal["derived", "literal"] = Field(
        default="derived", description="the root over the whole product, or over its first factor as printed (eq4)"
    )

    @property
    def takes_epsilon(self) -> bool:
        return self.calibration != "sigma"

    @property
    def around_zero(self) -> bool:
        return self.norm != "box"

    @property
    def one_radius(self) -> bool:
        return True


class SignSpec(MechanismSpec):
    """One randomised vote per value (personalised LDP-FL)."""

    name: Literal["sign"] = Field(default="sign", description="one vote per value, +1 or -1")
    calibration: Literal["response", "eq7", "sigma"] = Field(
        default="response",
        description="response: randomised response at epsilon per value; eq7: personalised LDP-FL, claimed; sigma: as "
        "given",
    )
    delta: Inside | None = Field(default=None, description="delta of the calibration (eq7)")
    sigma: Positive | None = Field(default=None, description="standard deviation of the noise (sigma)")

    @property
    def takes_epsilon(self) -> bool:
        return self.calibration != "sigma"

    @property
    def one_radius(self) -> bool:
        return self.calibration != "response"


class ExponentialSpec(MechanismSpec):
    """The exponential mechanism on integers (LDP-Fed); `clients.epsilon` is its alpha."""

    name: Literal["exponential"] = Field(
        default="exponential", description="values coded as integers; clients.epsilon is its alpha"
    )
    precision: Annotated[int, Ge(0), Le(18)] = Field(default=10, description="decimals kept when values are coded")

    @property
    def around_zero(self) -> bool:
        return True


class PiecewiseSpec(MechanismSpec):
    """The piecewise mechanism (Wang et al. 2019)."""

    name: Literal["piecewise"] = Field(
        default="piecewise", description="near the value with high probability; epsilon per value"
    )


class PrivUnitSpec(MechanismSpec):
    """PrivUnitG (Asi et al. 2022): the direction of a whole vector; claimed, for simulations."""

    name: Literal["privunit"] = Field(
        default="privunit", description="the whole vector's direction; epsilon is per vector, claimed: for simulations"
    )

    @property
    def around_zero(self) -> bool:
        return True


Mechanism = Annotated[
    NoMechanism
    | ClipOnlySpec
    | TwoPointSpec
    | LaplaceSpec
    | GaussianSpec
    | SignSpec
    | ExponentialSpec
    | PiecewiseSpec
    | PrivUnitSpec,
    Field(discriminator="name"),
]


# --- methods ----------------------------------------------------------------------------------------------------------

ServerLr = Annotated[Positive, Field(description="the step along the aggregated update")]
Clamp = Annotated[float, Gt(0), Le(2**14)] | None
CLAMP = (
    "the server reads values beyond +-clamp as +-clamp, so that one client can move the model no further; left out, it "
    "refuses values beyond 2^14"
)
Norm = Annotated[float, Gt(0), Le(2**24)] | None
NORM = (
    "L2 norm to which the server scales longer reports down, so that no client moves the model further; every plan "
    "announces it; for updates in single reports only"
)


class FedAvg(Part):
    """Federated averaging, with a mechanism on what leaves each client."""

    name: Literal["fedavg"] = Field(default="fedavg", description="federated averaging")
    upload: Literal["update", "weights"] = Field(
        default="update", description="what leaves a client: the change of the weights, or the weights"
    )
    server_lr: ServerLr = 1.0
    selection: Selection = Field(default=SelectAll(), description="who is asked in a round")
    scope: Scope = Field(default=ScopeAll(), description="which tensors take part in a round")
    range: Range | None = Field(
        default=None, description="where values are clipped to; left out only without a mechanism"
    )
    mechanism: Mechanism = Field(default=NoMechanism(), description="the randomiser; none unless one is named")
    norm: Norm = Field(default=None, description=NORM)
    channel: Channel = Field(default=DirectChannel(), description="how reports travel")
    aggregation: Aggregation = Field(default=Mean(), description="how reports are put together")


class LdpFl(Part):
    """LDP-FL: weights as single bits, ranges by layer, single parameters shuffled."""

    name: Literal["ldp-fl"] = Field(default="ldp-fl", description="weights as bits, ranges by layer, shuffled")
    server_lr: ServerLr = 1.0
    selection: Selection = Field(default=SelectAll(), description="who is asked in a round")
    range: LayerRange | None = Field(
        default=None, description="where weights are clipped to; left out only without a mechanism"
    )
    mechanism: Annotated[TwoPointSpec | ClipOnlySpec | NoMechanism, Field(discriminator="name")] = Field(
        default=TwoPointSpec(), description="the paper's randomiser, or for comparison one of those without noise"
    )
    channel: BitChannel = Field(default=DirectChannel(), description="how reports travel")
    aggregation: PartAggregation = Field(default=Mean(), description="how reports are put together")


class Target(Part):
    """What a run shall be proven to protect, in all its rounds together."""

    inline: ClassVar[bool] = True

    epsilon: Positive = Field(
        description="in all rounds together: silo-dp, for one record more or less, against the server; hybrid-one, the "
        "same against the secure sum; central-dp, for one client exchanged, against readers of the model"
    )
    delta: Inside = Field(description="at this delta")


class SiloDp(Part):
    """Silos that train by DP-SGD: each record is protected, for the whole run, from whoever sees the updates."""

    name: Literal["silo-dp"] = Field(default="silo-dp", description="record-level DP-SGD in every silo")
    server_lr: ServerLr = 1.0
    clip: ClipNorm = Field(default=1.0, description="L2 norm to which every record's gradient is clipped")
    sampling_rate: Annotated[float, Ge(2.0**-32), Le(1), Says("a probability from 2^-32 to 1")] = Field(
        default=0.1, description="probability with which a record is in a step's batch"
    )
    steps: Count = Field(default=20, description="noisy steps per round")
    noise_multiplier: Positive | None = Field(
        default=None, description="noise of a step's sum, in units of clip; or give target"
    )
    target: Target | None = Field(
        default=None, description="what the whole run is proven to protect, from which the noise multiplier is computed"
    )
    announced_size: Natural = Field(
        default=0,
        description="the public size of a silo that sums are divided by (0: the known data set's training examples "
        "divided by the clients)",
    )
    resolution: Annotated[int, Ge(4), Le(24), Says("a whole number from 4 to 24")] = Field(
        default=20, description="the noise of a silo has 2^resolution steps of the grid that gradients are rounded to"
    )
    coarsening: Annotated[int, Ge(0), Le(24), Says("a whole number from 0 to 24")] = Field(
        default=0, description="bits dropped from an exact sum, at random, before its noise: smaller numbers travel"
    )
    clamp: Clamp = Field(default=None, description=CLAMP)
    norm: Norm = Field(default=None, description=NORM)
    selection: Selection = Field(default=SelectAll(), description="who is asked in a round")
    channel: Channel = Field(default=DirectChannel(), description="how reports travel")
    aggregation: Aggregation = Field(default=Mean(), description="how reports are put together")


CodedMechanism = Annotated[ExponentialSpec | ClipOnlySpec | NoMechanism, Field(discriminator="name")]


class LdpFed(Part):
    """LDP-Fed: the scheduled layer's updates through the exponential mechanism; clients.epsilon is alpha in total."""

    name: Literal["ldp-fed"] = Field(default="ldp-fed", description="LDP-Fed; clients.epsilon is alpha, for all rounds")
    server_lr: ServerLr = 1.0
    selection: Selection = Field(default=SelectAll(), description="who is asked in a round")
    scope: LayerScope = Field(
        default=ScopeProportional(), description="which layers are sent in a round, and which part of alpha it spends"
    )
    range: FixedRange | None = Field(default=None, description="where values are clipped to: radius is the paper's c")
    mechanism: CodedMechanism = Field(
        default=ExponentialSpec(), description="exponential (precision is the paper's rho), or an ablation of it"
    )
    sampling: Literal["ignored", "claimed"] = Field(
        default="ignored",
        description="ignored: the rounds' alpha_i add up to alpha; claimed: they are 1/q larger where a fraction q of "
        "the clients is selected, for which there is no proof",
    )
    channel: Channel = Field(default=DirectChannel(), description="how reports travel")
    aggregation: PartAggregation = Field(default=Mean(), description="how reports are put together")


def _clip_form(value: Any) -> str:
    return "median" if isinstance(value, str) else "number"


class CentralDp(Part):
    """Client-level differential privacy by a trusted server, which clips updates and adds the noise (Geyer et al.)."""

    name: Literal["central-dp"] = Field(default="central-dp", description="a trusted server adds the noise")
    server_lr: ServerLr = 1.0
    clip: Annotated[
        Annotated[ClipNorm, Tag("number")] | Annotated[Literal["median"], Tag("median")],
        Discriminator(_clip_form),
        Says('a number from 1e-30 to 1e30, or "median"'),
    ] = Field(description="L2 norm to which updates are clipped, or the median of a round's norms: nothing proves that")
    noise_multiplier: Positive | None = Field(
        default=None, description="noise of a round's sum, in units of clip; or give target"
    )
    target: Target | None = Field(
        default=None, description="what the whole run is to protect, from which the noise multiplier is computed"
    )
    selection: Annotated[SelectProbability, _said("kind")] = Field(
        default=SelectProbability(p=1.0), description="each client's probability of being in a round's sum"
    )
    channel: Annotated[DirectChannel, _said("kind")] = Field(default=DirectChannel(), description="how reports travel")
    aggregation: Annotated[Mean, _said("kind")] = Field(default=Mean(), description="how reports are put together")


class LocalOnly(Part):
    """Every client learns alone for as many rounds, and sends nothing: what federated learning must beat."""

    name: Literal["local-only"] = Field(default="local-only", description="every client learns alone; nothing is sent")
    server_lr: ClassVar[float] = 1.0
    selection: ClassVar[SelectAll] = SelectAll()
    mechanism: ClassVar[NoMechanism] = NoMechanism()
    channel: ClassVar[DirectChannel] = DirectChannel()
    aggregation: ClassVar[Mean] = Mean()


class HybridOne(SiloDp):
    """Hybrid-One: silos that train by DP-SGD under a secure sum, each adding the part of the noise that it needs."""

    name: Literal["hybrid-one"] = Field(  # type: ignore[assignment]
        default="hybrid-one", description="record-level DP-SGD in every silo, the noise shared under a secure sum"
    )
    steps: Annotated[Literal[1], Says("1: what is summed is one noisy gradient")] = Field(
        default=1, description="noisy gradients per round: their sum is all that leaves, and the server takes the step"
    )
    colluding: Count = Field(
        default=1,
        description="how many silos of a sum may side with the server: the others, of the fewest that a sum has in it, "
        "add all of the noise",
    )
    aggregation: Annotated[Mean, _said("kind")] = Field(default=Mean(), description="how reports are put together")


class InverseDeviation(Part):
    """Reports weighed by the inverse of their noise's standard deviation (personalised LDP-FL, Eq. 11)."""

    kind: Literal["inverse-deviation"] = Field(
        default="inverse-deviation", description="weighed by the inverse of the noise's standard deviation"
    )


class SelectionByBudget(Part):
    """All report, and the reports of some count: the more likely, the less noise they carry (section 4.2)."""

    kind: Literal["selection"] = Field(
        default="selection", description="all report, and those count whose share of 1/deviation is above a random draw"
    )
    fallback: Literal["redraw", "keep"] = Field(
        default="redraw",
        description="where the draw is above everybody's share: draw again, or keep the model as it is",
    )


class Personalized(Part):
    """Personalised LDP-FL: each client its own epsilon; noisy weights or random signs, weighed or selected by it."""

    name: Literal["personalized"] = Field(
        default="personalized", description="clients with epsilons of their own, weighed or selected by them"
    )
    sends: Literal["weights", "signs"] = Field(
        default="weights",
        description="weights (the paper's IID data), or their signs, of which the model is the majority",
    )
    start: Literal["zeros", "random"] = Field(default="zeros", description="where the model's parameters start")
    portion: Natural = Field(
        default=0, description="records that a client takes up in a round, one portion after another (0: all of them)"
    )
    sampling: Probability = Field(default=1.0, description="probability q with which each of them is trained on")
    schedule: Literal["continues", "restarts"] = Field(
        default="continues", description="whether the learning rate's decay goes on from round to round or begins anew"
    )
    range: FixedRange | None = Field(default=None, description="where weights are clipped to: radius is the paper's c")
    mechanism: Annotated[GaussianSpec | SignSpec | ClipOnlySpec | NoMechanism, Field(discriminator="name")] = Field(
        default=NoMechanism(), description="gaussian for weights, sign for signs; or an ablation"
    )
    aggregation: Annotated[
        Mean | InverseDeviation | InverseVariance | SelectionByBudget | TrimmedMean | Median | NormFilter,
        Field(discriminator="kind"),
    ] = Field(default=Mean(), description="how reports are put together")
    server_lr: ClassVar[float] = 1.0
    selection: ClassVar[SelectAll] = SelectAll()
    channel: ClassVar[DirectChannel] = DirectChannel()


ModelName = Annotated[
    str, MinLen(1), Field(description="a model known by name with a layer called flatten, up to which it is used")
]
ModelOptions = Annotated[Table, Field(description="the model's options")]


class TrainedExtractor(Part):
    """Each client's own network, trained on its own records before the first round; its convolutions are kept."""

    kind: Literal["trained"] = Field(default="trained", description="a network of each client, trained on its records")
    model: ModelName
    options: ModelOptions = Field(default_factory=dict)
    start: Literal["common", "own"] = Field(
        default="common", description="all networks start from the same parameters, or each from its own"
    )
    training: Training = Field(default=Training(), description="how a client trains it, once")
    most_records: Count | None = Field(
        default=None,
        description="a public bound on a client's records: who has more uses the first so many; without it nothing is "
        "proven of the features",
    )


class RandomExtractor(Part):
    """A network as the seed starts it, untrained: public, and the same for all."""

    kind: Literal["random"] = Field(default="random", description="an untrained network, public and the same for all")
    model: ModelName
    options: ModelOptions = Field(default_factory=dict)


class OrientedExtractor(Part):
    """How strongly each part of an image changes in which direction: fixed filters, public, the same for all."""

    kind: Literal["oriented"] = Field(default="oriented", description="fixed filters, public and the same for all")
    orientations: Annotated[int, Ge(2), Le(16)] = Field(default=4, description="directions")
    cells: Annotated[int, Ge(1), Le(32)] = Field(default=7, description="parts along each side of an image")


Extractor = Annotated[TrainedExtractor | RandomExtractor | OrientedExtractor, Field(discriminator="kind")]


class Encoding(Part):
    """The fixed-point code of a feature (Eq. 10 of LDPFL), whole + fraction + 1 bits."""

    whole: Annotated[int, Ge(0), Le(20)] = Field(default=4, description="bits before the point")
    fraction: Annotated[int, Ge(0), Le(20)] = Field(default=5, description="bits after it")
    order: Literal["msb", "lsb"] = Field(
        default="msb", description="which bit comes first: theorem-2 keeps even positions and scrambles odd ones"
    )
    reading: Literal["text", "equation"] = Field(
        default="text", description="sign and magnitude as the paper's words say, or its equation as printed, unsigned"
    )


Alpha = Annotated[float, Gt(1), Le(1000), Field(description="the paper's privacy budget coefficient")]


class Theorem2Spec(MechanismSpec):
    """The randomiser of LDPFL: bits at even positions are mostly kept, those at odd ones scrambled."""

    name: Literal["theorem-2"] = Field(
        default="theorem-2", description="LDPFL's: epsilon is claimed per record; proven is tens of thousands"
    )
    alpha: Alpha = 10.0


class Theorem1Spec(MechanismSpec):
    """The first randomiser of LDPFL: nearly the claimed epsilon, and nearly no signal."""

    name: Literal["theorem-1"] = Field(default="theorem-1", description="LDPFL's first: nearly no signal is left")
    alpha: Alpha = 10.0


class RapporSpec(MechanismSpec):
    """Randomised response on every bit (RAPPOR, Eq. 11 of LDPFL)."""

    name: Literal["rappor"] = Field(default="rappor", description="randomised response on each bit, epsilon per record")


class OptimisedSpec(MechanismSpec):
    """Optimised unary encoding, on strings of which any two bits may differ."""

    name: Literal["optimised"] = Field(default="optimised", description="ones kept with 1/2, at epsilon per record")


class RecordPrivUnitSpec(MechanismSpec):
    """PrivUnitG of a record's features and label together: epsilon is per record; claimed, for simulations."""

    name: Literal["record-privunit"] = Field(
        default="record-privunit",
        description="features and label as one direction: epsilon per record, claimed: for simulations",
    )


RecordMechanism = Annotated[
    Theorem2Spec | Theorem1Spec | RapporSpec | OptimisedSpec | RecordPrivUnitSpec | NoMechanism,
    Field(discriminator="name"),
]


class Ldpfl(Part):
    """LDPFL: each client randomises its records' features once; a network is federated over what came of them."""

    name: Literal["ldpfl"] = Field(default="ldpfl", description="a network federated over records randomised once")
    server_lr: ClassVar[float] = 1.0
    selection: Selection = Field(default=SelectAll(), description="who is asked in a round")
    extractor: Extractor = Field(description="what makes features of records")
    encoding: Encoding = Field(default=Encoding(), description="how features become bits")
    mechanism: RecordMechanism = Field(default=Theorem2Spec(), description="the randomiser of a record")
    learning: Literal["together", "alone"] = Field(
        default="together", description="the network is federated, or every client trains its own"
    )
    examined: Literal["randomised", "plain"] = Field(
        default="randomised", description="whether test examples pass through the randomiser as records do"
    )
    clamp: Clamp = Field(default=None, description=CLAMP)
    channel: Annotated[DirectChannel, _said("kind")] = Field(default=DirectChannel(), description="how reports travel")
    aggregation: Annotated[Mean | BySamples | TrimmedMean | Median | NormFilter, Field(discriminator="kind")] = Field(
        default=Mean(), description="how reports are put together"
    )


class NoisySamples(Part):
    """Reports weighed by numbers of samples that clients announce once, with Laplace noise of their own."""

    kind: Literal["noisy-samples"] = Field(
        default="noisy-samples", description="weighed by sample counts that are announced once, with noise"
    )
    epsilon: Annotated[float, Gt(0), Le(20)] = Field(
        description="of that announcement, for a whole client; beside clients.epsilon"
    )
    limit: Annotated[int, Ge(2), Le(2**24)] = Field(description="the largest number that counts: public")


class WebFed(Part):
    """WebFed: clients are web pages, which add Laplace noise to their weights."""

    name: Literal["webfed"] = Field(default="webfed", description="weights with Laplace noise, as web pages send them")
    selection: Selection = Field(default=SelectAll(), description="who is asked in a round")
    range: FixedRange | None = Field(
        default=None, description="where weights are clipped to; left out only without a mechanism"
    )
    mechanism: Annotated[LaplaceSpec | ClipOnlySpec | NoMechanism, Field(discriminator="name")] = Field(
        default=LaplaceSpec(), description="laplace in one of its three readings, or one without noise"
    )
    aggregation: Annotated[
        Mean | BySamples | NoisySamples | TrimmedMean | Median | NormFilter, Field(discriminator="kind")
    ] = Field(default=Mean(), description="how reports are put together")
    server_lr: ClassVar[float] = 1.0
    channel: ClassVar[DirectChannel] = DirectChannel()


Method = Annotated[
    FedAvg | SiloDp | LdpFed | LdpFl | CentralDp | LocalOnly | HybridOne | Personalized | WebFed | Ldpfl,
    Field(discriminator="name"),
]


# --- rounds, evaluation, and the whole --------------------------------------------------------------------------------


class Rounds(Part):
    """How long the federation runs, and when a round counts."""

    count: Annotated[int, Ge(1), Le(100_000)] = Field(default=10, description="number of rounds, at most")
    target_accuracy: Annotated[float, Ge(0), Le(1)] = Field(default=0.0, description="stop once reached (0: never)")
    patience: Natural = Field(default=0, description="stop after so many evaluations without improvement (0: never)")
    stop_on: Literal["validation", "test"] = Field(
        default="validation", description="which examples decide about stopping; a test set that does so must be public"
    )
    quorum: Count = Field(default=1, description="fewest reports that make a round count")
    deadline: NonNegative = Field(
        default=0.0, description="seconds a round, or each step of a secure sum, may wait (0: no limit)"
    )

    @property
    def may_stop_early(self) -> bool:
        """Whether what a model scores may end the run."""
        return bool(self.patience or self.target_accuracy)


class Evaluation(Part):
    """When the model is evaluated."""

    every: Count = Field(default=1, description="evaluate after every n-th round, and after the last")


def _one_line(text: str) -> str:
    if text.splitlines() not in ([], [text]):
        raise refusal(f"got {shown(text)}; allowed: text on one line")
    return text


Line = Annotated[str, AfterValidator(_one_line)]
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$"


class Sections(Part):
    """All tables of a recipe, each right by itself; whether they fit each other is for `checks` to say."""

    name: Annotated[
        str,
        Field(pattern=NAME),
        Says("letters, digits, - and _, at most 100 of them, beginning with a letter or digit"),
    ] = Field(description="names the run's folder")
    summary: Line = Field(default="", description="what it is, in one line")
    seed: Annotated[int, Ge(0), Le(2**64 - 1), Says("a whole number from 0 to 2^64 - 1")] = Field(
        default=1, description="decides every random choice of a simulation"
    )
    paper: Line = Field(default="", description="which paper's setting this is, if any")
    data: Data = Field(description="the examples")
    split: Split = Field(description="who holds which examples")
    model: Model = Field(description="the network that is trained")
    training: Training = Field(default=Training(), description="how a client trains in one round")
    clients: Clients = Field(default=Clients(), description="what the clients spend, and what they allow")
    method: Method = Field(description="the algorithm")
    rounds: Rounds = Field(default=Rounds(), description="how long the federation runs, and when a round counts")
    evaluation: Evaluation = Field(default=Evaluation(), description="when the model is evaluated")

    @property
    def number_of_clients(self) -> int:
        """How many clients the split makes."""
        return self.split.number
