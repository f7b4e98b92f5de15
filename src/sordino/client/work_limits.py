"""What a recipe would cost this client, estimated before anything of that size is built, and the owner's limits on it.

Estimates use the recipe and public numbers alone. A refusal because of the owner's records would tell of them, so the
number of records is a stand-in, and what takes longer than estimated is for the clock (`sordino.client.clock`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sordino.channels.neighbours import Neighbourhood
from sordino.channels.secure_sum import WORTHWHILE, Summed
from sordino.channels.spec import first_tally
from sordino.client.invitation import Invitation
from sordino.client.refusal import Reason, Refused, refusing
from sordino.client.settings import OwnLimits
from sordino.errors import SordinoError
from sordino.learning import linear_head, models
from sordino.learning.training_tables import Training
from sordino.mechanisms import FixedPoint
from sordino.methods import extractors, randomised_records
from sordino.methods.interface import Method
from sordino.methods.private_head import PrivateHead
from sordino.parts.tables import Spec
from sordino.recipe import Recipe

RECORDS = 10_000  #: the stand-in for the number of records, where a recipe announces none

_OPERATIONS = 1e10  #: floating-point operations a second of an ordinary processor
_STEP = 1e-4  #: seconds that a step takes, however small the model
_RECORD = 1e-5  #: seconds that a record takes in a step
_COPIED = 1e-9  #: seconds that a parameter takes to be copied, for each record that is scored by itself
_VALUE = 5e-8  #: seconds that a parameter takes in a step, its noise included
_COPIES = 12  #: numbers that are held for each parameter: model, gradients, optimiser, plan, report
_NUMBER = 4  #: bytes
_CLIENT = 200  #: bytes that each client of a federation takes at every other one
_SHARE = 4e-7  #: seconds that a secure sum takes for each holder of shares and each one of them that must stay
_PEER = 3e-4  #: and for each peer: keys that are agreed on, seals, signatures
_MASKED = 4e-9  #: and for each peer and value: masks
_LISTED = 6e-5  #: and for each client where neighbours are drawn: their number is computed, and names are read
_RANDOMISED = 1e-7  #: seconds that a value of a record takes to be randomised once
_AT_ONCE = 24  #: bytes that a value takes while it is randomised, or brought to whole numbers
_FEATURE = 2e-8  #: seconds that a feature of a record takes to be brought to whole numbers, and whitened
_WHOLE = 2  #: bytes of a whole feature


def public_size(recipe: Recipe) -> int:
    """What stands for the number of a client's records in what may be refused: the announced one, or a stand-in."""
    return getattr(recipe.method, "announced_size", 0) or RECORDS


@dataclass(frozen=True)
class NetworkCost:
    """What one network takes: its parameters, and operations and numbers for one record."""

    parameters: int
    operations: float
    numbers: int

    @classmethod
    def of(cls, module: nn.Module, shape: Sequence[int]) -> NetworkCost:
        """What one record costs, looked up on PyTorch's meta device, where nothing is computed and no memory is taken.

        No graph for gradients is made: that of a deep network is too deep for the stack when it is taken down.
        """
        numbers = [math.prod(shape)]
        hooks = [
            part.register_forward_hook(lambda _module, _given, output: numbers.append(_size(output)))
            for part in module.modules()
        ]
        try:
            with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
                module.eval()(torch.empty((1, *shape)))
        finally:
            for hook in hooks:
                hook.remove()
        return cls(_parameters(module), float(counter.get_total_flops()), sum(numbers))

    @classmethod
    def of_own(cls, module: nn.Module, shape: Sequence[int]) -> NetworkCost:
        """The same of an owner's own code: where it looks at values, as if each parameter were used once a record."""
        try:
            return cls.of(module, shape)
        except Exception:
            parameters = _parameters(module)
            return cls(parameters, 2.0 * parameters, parameters)


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _layers(module: nn.Module) -> int:
    """How many parts of a network have parameters of their own."""
    return sum(any(True for _ in part.parameters(recurse=False)) for part in module.modules())


def _numbers_in(options: object) -> Iterator[float]:
    """All numbers in a model's options, however deep."""
    if isinstance(options, bool | int | float):
        yield abs(options)
    elif isinstance(options, dict):
        for value in options.values():
            yield from _numbers_in(value)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _numbers_in(value)


def _size(output: object) -> int:
    return output.numel() if isinstance(output, torch.Tensor) else 0


@dataclass(frozen=True)
class TrainingWork:
    """The work of a round: steps, records over all of them, and records that are held at the same time.

    Beside them are the records that are set `aside` and scored by themselves, where the model is evaluated privately.
    """

    steps: float
    records: float
    batch: float
    aside: float = 0.0

    @classmethod
    def plain(cls, training: Training, records: int) -> TrainingWork:
        """Of local training as a recipe describes it."""
        batch = training.batch_size or records
        if training.steps is not None:
            return cls(training.steps, training.steps * batch, batch)
        seen = (training.epochs or 1) * records
        return cls(math.ceil(seen / batch), seen, batch)

    @classmethod
    def of(cls, recipe: Recipe, records: int) -> TrainingWork:
        """Of a recipe; a method that takes no training computes one gradient of all records."""
        method = recipe.method
        if not method.takes_training:
            return cls(1, records, 1)
        if hasattr(method, "sampling_rate") and hasattr(method, "steps"):
            return cls.private(method, records)
        return cls.plain(recipe.training, records)

    @classmethod
    def private(cls, method: Spec, records: int) -> TrainingWork:
        """Of DP-SGD, whose gradients are taken record by record."""
        return cls(method.steps, method.steps * method.sampling_rate * records, 1)

    def seconds(self, network: NetworkCost) -> float:
        """About how long it takes, backward passes included."""
        each = 3 * network.operations / _OPERATIONS + _RECORD
        return self.steps * (_STEP + network.parameters * _VALUE) + self.records * each

    def evaluation_seconds(self, network: NetworkCost) -> float:
        """About how long it takes to score the records that are set aside, one at a time."""
        return self.aside * (_STEP + _COPIED * network.parameters + network.operations / _OPERATIONS)

    def megabytes(self, network: NetworkCost) -> float:
        """About how much memory it takes."""
        return _NUMBER * (_COPIES * network.parameters + 3 * self.batch * network.numbers) / 1e6


def _sum_seconds(clients: int, threshold: int, values: int, drawn: Neighbourhood | None) -> float:
    """About how long a client takes for a sum: with all others, or with those it drew and those who drew it."""
    if drawn is None:
        return clients * (_PEER + _SHARE * threshold + _MASKED * values)
    return 2 * drawn.size * (_PEER + _MASKED * values) + _SHARE * drawn.size * drawn.quorum + _LISTED * clients


@dataclass(frozen=True)
class Guard:
    """The limits of an owner, for one federation."""

    federation: str
    limits: OwnLimits

    def check(self, recipe: Recipe, invitation: Invitation) -> None:
        """Rounds first, then the networks one after the other: a later one may be as large as the one before says."""
        self.require(Reason.LIMIT_ROUNDS, recipe.rounds.count, self.limits.rounds, "rounds")
        method, records = recipe.method, public_size(recipe)
        shape, classes = invitation.shape, len(invitation.classes)
        self.require(Reason.LIMIT_MEMORY, _CLIENT * recipe.number_of_clients / 1e6, self.limits.memory, "megabytes")
        strengths = len(set(recipe.epsilons() or ()))
        self.require(Reason.LIMIT_STRENGTHS, strengths, self.limits.strengths, "different epsilons")
        extractor = getattr(method, "extractor", None)
        if extractor is not None and hasattr(extractor, "model"):
            training = getattr(extractor, "training", None)
            once = (
                TrainingWork(0, records, extractors.PIECE)
                if training is None
                else TrainingWork.plain(training, records)
            )
            trained_for = getattr(extractor, "classes", None) or classes
            self._network(extractor.model, shape, trained_for, extractor.options, once)
        with refusing(Reason.NOT_IN_RECIPE, self.federation):
            seen = method.record_shape(recipe, shape, classes)
        if extractor is not None:
            seconds = records * extractor.operations(shape) / _OPERATIONS
            self.require(Reason.LIMIT_SECONDS, seconds, self.limits.seconds, "seconds for features")
        if isinstance(method, PrivateHead.Spec):
            self._features(method, shape, classes, recipe.seed, records)
        elif extractor is not None:
            self._preparation(method, math.prod(seen), classes, records)
        share = 0.0 if recipe.evaluation.private is None else recipe.evaluation.private.share
        work = replace(TrainingWork.of(recipe, records), aside=records * share / (1 - share))
        self._network(recipe.model.name, seen, classes, recipe.model.options, work)

    def check_sums(self, method: Method, client: int) -> None:
        """Refuse a secure sum that takes too long, on the graph on which this client's class is summed."""
        rule, selection = method.spec.channel, method.spec.selection
        if not isinstance(rule, Summed.Spec):
            return
        with refusing(Reason.NOT_IN_RECIPE, self.federation):
            tally = first_tally(method)
        group, asked = int(tally.upload.class_of[client]), selection.asked(method.clients)
        size = int(np.count_nonzero(tally.upload.class_of == group))
        most, fewest = min(size, asked), asked - (method.clients - size) if selection.steady else 0
        drawn = rule.neighbourhood(most, tally.upload, group)
        seconds = _sum_seconds(most, rule.least(most), tally.summands, drawn)
        if drawn is not None:
            complete = min(most, max(rule.sparse_from - 1, WORTHWHILE * drawn.size))  # fewer deal with all others
            if complete >= fewest:
                seconds = max(seconds, _sum_seconds(complete, rule.least(complete), tally.summands, None))
        self.require(Reason.LIMIT_SECONDS, seconds, self.limits.seconds, "seconds for a step of a secure sum")

    def _features(self, method: Spec, shape: Sequence[int], classes: int, seed: int, records: int) -> None:
        """Features of all records, kept as whole numbers: before and, in their place, after they are whitened."""
        with refusing(Reason.NOT_IN_RECIPE, self.federation):
            extractor = method.extractor.build(tuple(shape), classes, seed)
        maps, size = extractor.shape[0], extractor.features
        at_once = min(records, extractors.PIECE)
        seconds = records * size * (2 * maps / _OPERATIONS + _FEATURE)
        self.require(Reason.LIMIT_SECONDS, seconds, self.limits.seconds, "seconds for whitening features")
        whole = records * (_NUMBER * math.prod(shape) + 2 * _WHOLE * (size + extractor.scores))
        between = at_once * 2 * _NUMBER * size + _AT_ONCE * max(linear_head.BLOCK, linear_head.FEWEST_ROWS * size)
        squares = 6 * _NUMBER * maps * maps  # second moments, their eigenvectors, what records are whitened by
        self.require(Reason.LIMIT_MEMORY, (whole + between + squares) / 1e6, self.limits.memory, "megabytes")

    def _preparation(self, method: Spec, seen: int, classes: int, records: int) -> None:
        """Records that are randomised once: features of all of them, what is kept of each, some at a time between."""
        if method.mechanism.joint:
            values, features, kept = classes * seen, seen, 4 * classes * seen
        else:
            encoding = method.encoding
            code = FixedPoint(encoding.whole, encoding.fraction, encoding.order, encoding.reading)
            values, features, kept = seen, seen // code.bits, seen // 8
        at_once = min(records, randomised_records.at_once(values))
        megabytes = (records * (3 * _NUMBER * features + 2 * kept) + _AT_ONCE * at_once * values) / 1e6
        self.require(Reason.LIMIT_MEMORY, megabytes, self.limits.memory, "megabytes")
        seconds = _RANDOMISED * records * values
        self.require(Reason.LIMIT_SECONDS, seconds, self.limits.seconds, "seconds for randomising records")

    def _network(
        self, name: str, shape: Sequence[int], classes: int, options: Mapping[str, object], work: TrainingWork
    ) -> None:
        """Refuse a network that is too large or trained for too long."""
        listed = sum(len(value) for value in options.values() if isinstance(value, list | tuple))
        self.require(Reason.LIMIT_LAYERS, listed, self.limits.layers, "layers")
        own = models.is_own(name)
        try:
            with torch.device("meta"), torch.no_grad():
                module = models.untried(name, input_shape=shape, classes=classes, **options)
            self.built(module)
            network = NetworkCost.of_own(module, shape) if own else NetworkCost.of(module, shape)
        except Refused:
            raise
        except Exception as error:
            if own:  # the owner's own code, which meta tensors do not fit: it is counted when it is built
                self._options(name, options)
                return
            with refusing(Reason.NOT_IN_RECIPE, self.federation):
                if isinstance(error, SordinoError):
                    raise
            raise Refused(
                Reason.LIMIT_PARAMETERS, f"{self.federation}: {name} is too large for its size to be told"
            ) from None
        self.require(Reason.LIMIT_MEMORY, work.megabytes(network), self.limits.memory, "megabytes")
        self.require(Reason.LIMIT_SECONDS, work.seconds(network), self.limits.seconds, "seconds for a round")
        seconds = work.evaluation_seconds(network)
        self.require(Reason.LIMIT_SECONDS, seconds, self.limits.seconds, "seconds for an evaluation")

    def _options(self, name: str, options: Mapping[str, object]) -> None:
        """Refuse a number that, as the width of two layers, would make more parameters than the limit."""
        largest, most = max(_numbers_in(options), default=0), math.isqrt(self.limits.parameters)
        if not largest <= most:
            raise Refused(
                Reason.LIMIT_PARAMETERS,
                f"{self.federation} makes {name} with an option of {largest:,.6g}, and its size cannot be told before "
                f"it is built: allowed are numbers up to {most:,}, the root of limits.parameters in client.toml",
            )

    def built(self, network: nn.Module) -> None:
        """Layers and parameters of what was built, be it without memory or with."""
        self.require(Reason.LIMIT_LAYERS, _layers(network), self.limits.layers, "layers")
        self.require(Reason.LIMIT_PARAMETERS, _parameters(network), self.limits.parameters, "parameters")

    def require(self, reason: Reason, given: float, most: float, unit: str) -> None:
        """Refuse more than the limit."""
        if not given <= most:
            raise Refused(
                reason,
                f"{self.federation} asks for {given:,.6g} {unit}, and {reason.limit} in client.toml is {most:,.6g}: "
                "raise that if you want to spend so much, restart the client if it runs, and join again",
            )


__all__ = ["Guard", "NetworkCost", "TrainingWork", "public_size"]
