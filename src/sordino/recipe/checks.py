"""Whether the tables of a recipe fit each other.

Each check names the keys it reads. Where one of them is wrong by itself, the check is left out: what it would say rests
on a value that was not meant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sordino.learning.datasets import KNOWN
from sordino.recipe.grammar import (
    ROBUST,
    AdaptiveRange,
    Agreement,
    BudgetRule,
    ByBudget,
    BySamples,
    CentralDp,
    DirichletSplit,
    FedAvg,
    GaussianSpec,
    HybridOne,
    IidSplit,
    InverseVariance,
    LaplaceSpec,
    LdpFed,
    LdpFl,
    Ldpfl,
    Part,
    Personalized,
    RelayChannel,
    ScopeProportional,
    Sections,
    SelectCount,
    Sgd,
    ShardsSplit,
    Shares,
    ShuffledChannel,
    ShufflerChannel,
    SignAggregation,
    SignSpec,
    SiloDp,
    SizesSplit,
    SummedChannel,
    WebFed,
)
from sordino.recipe.problems import Problem, nearest
from sordino.recipe.toml import shown
from sordino.recipe.tree import Location

Found = Iterator[Problem]


@dataclass(frozen=True)
class _Check:
    reads: tuple[Location, ...]
    find: Callable[[Sections], Found]


_CHECKS: list[_Check] = []


def _reads(*keys: str) -> Callable[[Callable[[Sections], Found]], Callable[[Sections], Found]]:
    def register(find: Callable[[Sections], Found]) -> Callable[[Sections], Found]:
        _CHECKS.append(_Check(tuple(tuple(key.split(".")) for key in keys), find))
        return find

    return register


def conflicts(recipe: Sections, unusable: Sequence[Location] = ()) -> list[Problem]:
    """What does not fit together, leaving out all that reads an unusable place."""
    sound = (check for check in _CHECKS if not any(_overlap(a, b) for a in check.reads for b in unusable))
    return [problem for check in sound for problem in check.find(recipe)]


def _overlap(one: Location, other: Location) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def _at(key: str, text: str) -> Problem:
    return Problem(tuple(key.split(".")), text)


def _missing_or_superfluous(
    table: str, part: Part, wanted: Sequence[str], optional: Sequence[str], others: Sequence[str], whom: str
) -> Found:
    """Problems of fields (None: not given) of which one use of a table wants some and knows nothing of others."""
    for name in wanted:
        if getattr(part, name) is None:
            purpose = type(part).model_fields[name].description
            yield _at(f"{table}.{name}", f"missing; {whom} needs it: {purpose}")
    for name in others:
        if name not in (*wanted, *optional) and getattr(part, name) is not None:
            yield _at(f"{table}.{name}", f"got {shown(getattr(part, name))}; {whom} takes none: leave it out")


# --- data and split ---------------------------------------------------------------------------------------------------

OWN_FIELDS = ("classes", "label", "features", "test", "channels", "mean", "std", "arguments")
_NEEDS = {
    "known": (),
    "function": (),
    "npz": ("classes", "mean", "std"),
    "table": ("classes", "label", "test", "mean", "std"),
    "images": ("classes", "test", "mean", "std"),
}
_MAY_HAVE = {"known": (), "function": ("arguments",), "npz": (), "table": ("features",), "images": ("channels",)}
_WHOM = {
    "known": "the known data set {source}, whose classes and constants are published,",
    "function": "a function that returns a Dataset, with its classes and constants,",
    "npz": "an .npz file of your own",
    "table": "a table of your own",
    "images": "a folder of your own images",
}


@_reads("data.source", *(f"data.{name}" for name in OWN_FIELDS))
def _the_source_is_known_and_described(recipe: Sections) -> Found:
    data = recipe.data
    origin = data.origin
    if origin is None:
        yield _at(
            "data.source",
            f"unknown data set {data.source!r}; {nearest(data.source, KNOWN)}known: {', '.join(KNOWN)}; your own is "
            "a path to an .npz or .csv file, a folder of images written with a slash (./scans), or "
            "'package.module:function'",
        )
        return
    whom = _WHOM[origin].format(source=data.source)
    yield from _missing_or_superfluous("data", data, _NEEDS[origin], _MAY_HAVE[origin], OWN_FIELDS, whom)


@_reads("data.classes", "data.mean", "data.std", "data.channels")
def _public_constants_are_coherent(recipe: Sections) -> Found:
    data = recipe.data
    if data.classes is not None and (len(set(data.classes)) != len(data.classes) or len(data.classes) < 2):
        yield _at("data.classes", f"got {shown(data.classes)}; allowed: at least two names, all different")
    if data.mean and data.std and len(data.mean) != len(data.std):
        yield _at("data.std", f"got {len(data.std)} for {len(data.mean)} means; allowed: as many as data.mean")


@_reads("data.source", "data.train_limit", "split")
def _a_known_set_has_enough_examples(recipe: Sections) -> Found:
    examples, split = recipe.data.examples, recipe.split
    if examples is None:
        return
    match split:
        case SizesSplit() if sum(split.sizes) > examples:
            yield _at("split.sizes", f"add up to {sum(split.sizes):,}; allowed: at most {examples:,}, all there are")
        case IidSplit() | DirichletSplit() if split.number * split.at_least > examples:
            yield _at(
                "split.clients",
                f"{split.number:,} clients with at least {split.at_least} examples each need more than the "
                f"{examples:,} there are: take fewer, or split.at_least = 0 where clients may be empty",
            )
        case ShardsSplit() if not _enough_shards(recipe, split, examples):
            classes = len(KNOWN[recipe.data.source].classes)
            yield _at(
                "split.labels_per_client",
                f"{split.clients:,} clients with {split.labels_per_client} labels each make "
                f"{split.clients * split.labels_per_client:,} shards; allowed: {classes} (one per class) to "
                f"{examples:,} (one per example)",
            )


def _enough_shards(recipe: Sections, split: ShardsSplit, examples: int) -> bool:
    classes = len(KNOWN[recipe.data.source].classes)
    return classes <= split.clients * split.labels_per_client <= examples


@_reads("split.sizes", "split.at_least")
def _every_size_is_at_least_that(recipe: Sections) -> Found:
    split = recipe.split
    if isinstance(split, SizesSplit) and min(split.sizes) < split.at_least:
        place = split.sizes.index(min(split.sizes))
        yield Problem(
            ("split", "sizes", place),
            f"got {min(split.sizes)}; allowed: at least split.at_least = {split.at_least}, which may be 0",
        )


# --- training ---------------------------------------------------------------------------------------------------------


@_reads("training.epochs", "training.steps")
def _epochs_or_steps(recipe: Sections) -> Found:
    training = recipe.training
    if training.epochs is not None and training.steps is not None:
        yield _at("training.epochs", f"got {training.epochs} beside steps = {training.steps}; allowed: one of the two")


@_reads("training.optimizer")
def _nesterov_needs_momentum(recipe: Sections) -> Found:
    optimizer = recipe.training.optimizer
    if isinstance(optimizer, Sgd) and optimizer.nesterov and not optimizer.momentum:
        yield _at("training.optimizer.nesterov", "got true with momentum = 0; allowed: only with momentum above 0")


@_reads("method.name", "training.epochs", "training.steps", "training.batch_size")
def _silos_draw_their_own_batches(recipe: Sections) -> Found:
    if not isinstance(recipe.method, SiloDp):
        return
    for name in sorted(recipe.training.model_fields_set - {"optimizer"}):
        yield _at(
            f"training.{name}",
            f"got {shown(getattr(recipe.training, name))}; silo-dp draws its own batches (method.sampling_rate, "
            "method.steps) and takes the optimizer alone: leave it out",
        )


# --- clients ----------------------------------------------------------------------------------------------------------


@_reads("clients.epsilon", "split")
def _an_epsilon_for_each_client(recipe: Sections) -> Found:
    yield from _strength_problems("clients.epsilon", recipe.clients.epsilon, recipe.number_of_clients)


@_reads("clients.budget", "split")
def _a_limit_for_each_client(recipe: Sections) -> Found:
    if isinstance(recipe.clients.budget, BudgetRule):
        yield from _strength_problems("clients.budget.limit", recipe.clients.budget.limit, recipe.number_of_clients)


def _strength_problems(key: str, strength: object, clients: int) -> Found:
    if isinstance(strength, tuple) and len(strength) != clients:
        yield _at(key, f"got {len(strength)} numbers for {clients} clients; allowed: one for each client")
    if not isinstance(strength, Shares):
        return
    if len(strength.values) != len(strength.shares):
        yield _at(
            f"{key}.shares", f"got {len(strength.shares)} for {len(strength.values)} values; allowed: one for each"
        )
    elif not math.isclose(sum(strength.shares), 1, abs_tol=1e-9):
        yield _at(f"{key}.shares", f"add up to {sum(strength.shares):.12g}; allowed: 1 together")


@_reads("clients.epsilon", "method.name", "method.mechanism")
def _epsilon_where_it_is_used(recipe: Sections) -> Found:
    method, epsilon = recipe.method, recipe.clients.epsilon
    if isinstance(method, SiloDp | CentralDp):
        if epsilon is not None:
            yield _at(
                "clients.epsilon",
                f"{method.name} takes none, its strength is method.target or method.noise_multiplier: leave it out",
            )
        return
    mechanism = method.mechanism
    by_sigma = isinstance(mechanism, GaussianSpec | SignSpec) and mechanism.calibration == "sigma"
    whom = f"{mechanism.name} with calibration = sigma" if by_sigma else str(mechanism.name)
    if mechanism.takes_epsilon and epsilon is None:
        yield _at("clients.epsilon", f"missing; the mechanism {whom} needs it: one number, or one for each client")
    if not mechanism.takes_epsilon and epsilon is not None:
        yield _at("clients.epsilon", f"the mechanism {whom} takes none: leave it out, or name another mechanism")


# --- method -----------------------------------------------------------------------------------------------------------


@_reads("method.name", "method.range", "method.mechanism")
def _the_range_fits_the_mechanism(recipe: Sections) -> Found:
    if not isinstance(recipe.method, FedAvg | LdpFed | LdpFl | Personalized | WebFed):
        return
    mechanism, range_ = recipe.method.mechanism, recipe.method.range
    if range_ is None:
        if mechanism.clips:
            yield _at(
                "method.range",
                f'missing; the mechanism {mechanism.name} needs a public range, such as kind = "fixed" and a radius; '
                "nothing computes it from private data",
            )
        return
    if not mechanism.clips:
        yield _at("method.range", f"the mechanism {mechanism.name} clips nothing: leave it out, or take clip-only")
    elif mechanism.around_zero and range_.centre != 0:
        yield _at(
            "method.range.centre", f"got {shown(range_.centre)}; {_form(mechanism)} lies around zero: leave it out"
        )
    if mechanism.clips and mechanism.one_radius and isinstance(range_.radius, dict):
        yield _at(
            "method.range.radius",
            f"got {shown(range_.radius)}; {_form(mechanism)} has one radius for all layers: give one number",
        )


def _form(mechanism: Part) -> str:
    """The mechanism as a recipe names it, with the norm or calibration that decides."""
    details = [str(getattr(mechanism, name)) for name in ("norm", "calibration") if hasattr(mechanism, name)]
    name = getattr(mechanism, "name", "")
    return f"{name} ({', '.join(details)})" if details else name


@_reads("method.name", "method.mechanism")
def _a_calibration_has_its_own_fields(recipe: Sections) -> Found:
    if not isinstance(recipe.method, FedAvg | Personalized | WebFed):
        return
    mechanism, table = recipe.method.mechanism, "method.mechanism"
    match mechanism:
        case GaussianSpec():
            needs = {"analytic": ("delta",), "sigma": ("sigma",), "eq4": ("delta", "sampling", "rounds")}
            wanted = needs[mechanism.calibration]
            whom = f"gaussian with calibration = {mechanism.calibration}"
            yield from _missing_or_superfluous(
                table, mechanism, wanted, (), ("delta", "sigma", "sampling", "rounds"), whom
            )
            if mechanism.calibration == "eq4" and mechanism.norm != "box":
                yield _at(f"{table}.norm", f"got {mechanism.norm}; allowed with calibration = eq4: box")
            if mechanism.calibration != "eq4" and mechanism.reading != "derived":
                yield _at(f"{table}.reading", f"got {mechanism.reading}; {whom} takes none: leave it out")
        case SignSpec():
            needs = {"response": (), "eq7": ("delta",), "sigma": ("sigma",)}
            whom = f"sign with calibration = {mechanism.calibration}"
            yield from _missing_or_superfluous(
                table, mechanism, needs[mechanism.calibration], (), ("delta", "sigma"), whom
            )
        case LaplaceSpec() if mechanism.records > 1 and mechanism.norm != "box":
            yield _at(f"{table}.records", f"got {mechanism.records}; allowed with norm = {mechanism.norm}: 1")


@_reads("method.name", "method.mechanism", "method.aggregation", "clients.epsilon")
def _the_aggregation_can_be_had(recipe: Sections) -> Found:
    method = recipe.method
    key, aggregation = "method.aggregation.kind", method.aggregation
    mechanism = getattr(method, "mechanism", None)
    whom = f"the mechanism {mechanism.name}" if mechanism is not None else method.name
    match aggregation:
        case SignAggregation() if mechanism is None or mechanism.name != "sign":
            yield _at(key, f"got sign with {whom}; allowed only with the mechanism sign, whose reports are votes")
        case InverseVariance() if mechanism is None or not mechanism.noisy:
            yield _at(
                key, f"got inverse-variance with {whom}, whose reports carry no noise of known variance: take mean"
            )
        case ByBudget() if recipe.clients.epsilon is None:
            yield _at(key, f"got budget without clients.epsilon, by which it weighs ({whom}): take mean or samples")


_UNSEEN = {
    "summed": "in a secure sum the server sees no single report",
    "shuffled": "behind a shuffler the server sees no whole report",
    "shuffler": "behind a shuffler the server sees no whole report",
}


@_reads("method")
def _a_robust_rule_sees_single_reports(recipe: Sections) -> Found:
    method = recipe.method
    if not isinstance(method.aggregation, ROBUST):
        return
    key, kind = "method.aggregation.kind", method.aggregation.kind
    mechanism = getattr(method, "mechanism", None)
    if method.channel.kind in _UNSEEN:
        yield _at(key, f"got {kind}, but {_UNSEEN[method.channel.kind]}: take mean, or method.channel.kind = direct")
    elif mechanism is not None and mechanism.name in ("two-point", "sign"):
        yield _at(
            key,
            f"got {kind} with the mechanism {mechanism.name}; a report is single bits, and its two points bound it: "
            "take mean",
        )
    elif isinstance(method.aggregation, Agreement) and getattr(method, "upload", "update") != "update":
        yield _at(key, "got agreement with upload = weights; directions are of updates: take upload = update")
    elif isinstance(method.aggregation, Agreement) and getattr(method, "norm", None) is None:
        yield _at("method.norm", "is missing; agreement goes by directions, and nothing else bounds a length: set it")


@_reads("method")
def _a_norm_has_updates_to_scale(recipe: Sections) -> Found:
    method = recipe.method
    if not isinstance(method, FedAvg | SiloDp) or method.norm is None:
        return
    if method.channel.kind in _UNSEEN:
        why = f"got {method.norm:g}, but {_UNSEEN[method.channel.kind]}, and can shorten none"
        yield _at("method.norm", f"{why}: leave it out, or take method.channel.kind = direct with silo-dp or fedavg")
    if not isinstance(method, FedAvg):
        return
    if method.upload != "update":
        yield _at(
            "method.norm",
            f"got {method.norm:g} with upload = {method.upload}; shorter weights are another model: take upload = "
            "update, or method.aggregation.kind = trimmed-mean",
        )
    if method.mechanism.name in ("two-point", "sign"):
        yield _at(
            "method.norm",
            f"got {method.norm:g} with the mechanism {method.mechanism.name}, whose two points bound a report: leave "
            "it out",
        )
    elif method.range is not None and method.range.centre != 0:
        yield _at("method.norm", f"got {method.norm:g} with range.centre = {shown(method.range.centre)}; allowed: 0")


@_reads("method.name", "method.range", "method.mechanism")
def _an_adaptive_range_can_be_had(recipe: Sections) -> Found:
    method = recipe.method
    if not isinstance(method, LdpFl) or not isinstance(method.range, AdaptiveRange):
        return
    if method.range.radius is None and method.range.centre != 0:
        yield _at("method.range.centre", "got one without a radius, and both are of the first round: give both or none")
    if method.mechanism.around_zero:
        yield _at("method.range.kind", f"got adaptive with {_form(method.mechanism)}; allowed: fixed")


@_reads("method", "split")
def _only_bits_are_shuffled(recipe: Sections) -> Found:
    method, clients = recipe.method, recipe.number_of_clients
    if not isinstance(method, LdpFl) or not isinstance(method.channel, ShuffledChannel | ShufflerChannel):
        return
    channel, asked = method.channel, method.selection.asked(clients)
    if method.mechanism.name != "two-point":
        found = f"got {channel.kind} with the mechanism {method.mechanism.name}"
        yield _at("method.channel.kind", f"{found}; allowed only with two-point, whose reports are bits: take direct")
    if isinstance(method.aggregation, BySamples):
        yield _at("method.aggregation.kind", "got samples; a shuffled report has no number beside it: take mean")
    if channel.at_least > asked:
        yield _at("method.channel.at_least", f"got {channel.at_least}; allowed: at most {asked}, the clients asked")
    if isinstance(channel, ShufflerChannel) or channel.delay is None:
        return
    for name in ("latency", "computing", "communication"):
        yield from _strength_problems(f"method.channel.delay.{name}", getattr(channel.delay, name), clients)


@_reads("method", "rounds.count")
def _personal_reports_fit_each_other(recipe: Sections) -> Found:
    method = recipe.method
    if not isinstance(method, Personalized):
        return
    mechanism, aggregation = method.mechanism, method.aggregation.kind
    fitting = ("sign", "none") if method.sends == "signs" else ("gaussian", "clip-only", "none")
    if mechanism.name not in fitting:
        yield _at("method.sends", f"got {method.sends} with the mechanism {mechanism.name}; allowed: {_or(fitting)}")
    if aggregation in ("inverse-deviation", "selection") and not mechanism.noisy:
        found = f"got {aggregation}, but {mechanism.name} adds no noise"
        yield _at("method.aggregation.kind", f"{found} to go by: take mean")
    if aggregation == "inverse-variance" and mechanism.name == "sign":
        yield _at(
            "method.aggregation.kind",
            "got inverse-variance with votes, which all have the same: take inverse-deviation, which is best for votes",
        )


@_reads("method", "rounds.count")
def _eq4_speaks_of_this_recipe(recipe: Sections) -> Found:
    """One claim of Eq. 4 is for R rounds of records sampled with q: whatever the method, both must be the recipe's."""
    mechanism = getattr(recipe.method, "mechanism", None)
    if not isinstance(mechanism, GaussianSpec) or mechanism.calibration != "eq4":
        return
    yield from _same("method.mechanism.rounds", mechanism.rounds, "rounds.count", recipe.rounds.count)
    if isinstance(recipe.method, Personalized):
        q = recipe.method.sampling
        yield from _same("method.mechanism.sampling", mechanism.sampling, "method.sampling", q)
    elif mechanism.sampling is not None:
        yield _at(
            "method.mechanism.sampling",
            f"got {mechanism.sampling:g}, but {recipe.method.name} trains on all records, and Eq. 4 is of records that "
            "are sampled: take calibration = analytic or sigma, or the method personalized, which samples",
        )


@_reads("method")
def _counts_are_announced_by_all_at_once(recipe: Sections) -> Found:
    method = recipe.method
    if isinstance(method, WebFed) and method.aggregation.kind == "noisy-samples" and method.selection.kind != "all":
        yield _at(
            "method.aggregation.kind",
            f"got noisy-samples with selection = {method.selection.kind}; counts are announced in the first round, by "
            "all: take selection = all, or mean",
        )


def _or(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" or {names[-1]}"


def _same(key: str, given: float | None, other: str, wanted: float) -> Found:
    if given is not None and given != wanted:
        yield _at(key, f"got {given:g}, but {other} is {wanted:g}; Eq. 4 speaks of one and the same: give both alike")


@_reads("method.selection", "split")
def _no_more_asked_than_there_are(recipe: Sections) -> Found:
    selection = recipe.method.selection
    if isinstance(selection, SelectCount) and selection.k > recipe.number_of_clients:
        yield _at("method.selection.k", f"got {selection.k}; allowed: at most {recipe.number_of_clients}, all clients")


@_reads("method.selection", "method.channel", "split")
def _a_relay_hands_on_no_more_than_it_gets(recipe: Sections) -> Found:
    channel, asked = recipe.method.channel, recipe.method.selection.asked(recipe.number_of_clients)
    if isinstance(channel, RelayChannel) and channel.k > asked:
        yield _at("method.channel.k", f"got {channel.k}; allowed: at most {asked}, the clients asked in a round")


@_reads("method", "rounds.count")
def _cycles_are_equally_long(recipe: Sections) -> Found:
    method, count = recipe.method, recipe.rounds.count
    if not isinstance(method, LdpFed):
        return
    if isinstance(method.scope, ScopeProportional) and count % method.scope.cycles:
        yield _at(
            "method.scope.cycles",
            f"got {method.scope.cycles}; allowed: a divisor of rounds.count = {count}, so that all cycles are alike",
        )
    if method.range is not None and isinstance(method.range.radius, dict) and not method.mechanism.one_radius:
        yield _at(
            "method.range.radius", f"got {shown(method.range.radius)}; ldp-fed codes all layers alike: give one number"
        )


@_reads("method.selection", "method.channel", "split", "rounds.quorum")
def _a_quorum_can_be_met(recipe: Sections) -> Found:
    asked = recipe.method.selection.asked(recipe.number_of_clients)
    if isinstance(recipe.method.channel, RelayChannel):
        asked = min(asked, recipe.method.channel.k)
    if recipe.rounds.quorum > asked:
        yield _at(
            "rounds.quorum", f"got {recipe.rounds.quorum}; allowed: at most {asked}, the clients asked in a round"
        )


@_reads("method")
def _gaussian_noise_is_given_in_one_way(recipe: Sections) -> Found:
    method = recipe.method
    if not isinstance(method, SiloDp | CentralDp):
        return
    given = [name for name in ("noise_multiplier", "target") if getattr(method, name) is not None]
    if len(given) != 1:
        found = "neither" if not given else "both"
        yield _at(
            "method.target",
            f"{found} given of target = {{ epsilon = ..., delta = ... }} and noise_multiplier; allowed: exactly one",
        )


@_reads("method", "data.source")
def _silos_know_their_size(recipe: Sections) -> Found:
    method = recipe.method
    if not isinstance(method, SiloDp):
        return
    if method.announced_size == 0 and recipe.data.origin not in ("known", None):
        yield _at(
            "method.announced_size",
            "missing; the number of your own examples is private: announce a public size of a silo, such as 1000",
        )


@_reads("method", "split")
def _honest_silos_are_in_every_secure_sum(recipe: Sections) -> Found:
    method = recipe.method
    if not isinstance(method, HybridOne):
        return
    channel, asked = method.channel, method.selection.asked(recipe.number_of_clients)
    if not isinstance(channel, SummedChannel):
        yield _at(
            "method.channel.kind",
            f"got {channel.kind}; each silo of hybrid-one adds a part of the noise only, which hides little unless "
            "sums alone are seen: take summed, or the method silo-dp",
        )
    elif method.selection.kind == "probability":
        yield _at(
            "method.selection.kind",
            "got probability; how many silos share the noise must be known: take all, count or fraction",
        )
    elif method.colluding > (most := 2 * channel.least(asked) - asked - 1):
        yield _at(
            "method.colluding",
            f"got {method.colluding}; allowed: at most {most} where {channel.least(asked)} of {asked} silos are in "
            "every sum: raise method.channel.threshold, or ask more silos",
        )


@_reads("method.name", "method.mechanism", "model.name", "training.augmentation")
def _randomised_records_are_no_images(recipe: Sections) -> Found:
    method = recipe.method
    if not isinstance(method, Ldpfl):
        return
    if recipe.training.augmentation is not None:
        yield _at(
            "training.augmentation",
            "got some, but this training sees randomised features only: give it to method.extractor.training",
        )
    if method.mechanism.name == "record-privunit" and recipe.model.name != "logistic":
        yield _at("model.name", f"got {recipe.model.name}; record-privunit is learnt by one dense layer: take logistic")


# --- stopping ---------------------------------------------------------------------------------------------------------


@_reads("rounds", "data.validation")
def _stopping_has_something_to_go_by(recipe: Sections) -> Found:
    rounds = recipe.rounds
    used = [name for name in ("target_accuracy", "patience") if getattr(rounds, name)]
    if used and rounds.stop_on == "validation" and not recipe.data.validation:
        yield _at(
            f"rounds.{used[0]}",
            f"got {shown(getattr(rounds, used[0]))}, but no examples are set aside to decide it: set data.validation "
            'above 0, or rounds.stop_on = "test" where the test set is public',
        )


__all__ = ["conflicts"]
