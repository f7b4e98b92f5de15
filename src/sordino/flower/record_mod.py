"""Record-level privacy for a Flower app that trains with PyTorch: DP-SGD in the place of the app's own loop.

    app = ClientApp(mods=[record_privacy("budgets", shape=(1, 28, 28), announced_size=600, ...)])
    return private_training(net, optimizer, trainloader)                      in the function that trains

The mod asks the ledger before the app is called, and sends what `private_training` computed in the place of the app's
own reply: weights that are a function of the server's message and of noisy sums alone. These sums are those of
`silo-dp` (learning/private_sgd.py): per-record gradients, one record at a time, clipped and rounded to a grid, over
Poisson samples, plus discrete Gaussian noise. The app's optimiser moves the model by them.

The app's code computes on the records in the node's process. A record at which it raises anything adds nothing; one at
which it ends the process, hangs or takes all memory leaves the server without a reply, and one at which it raises
before `private_training` lets the node decline. So the loss of a record is `Infinite`, and `of_sums` says what it would
be if no record did so.

Servers need no line of Sordino's: replies look like the app's, and every client weighs alike.
"""

from __future__ import annotations

import copy
import math
import random
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from sordino.errors import STOPPING, InvalidInput
from sordino.flower import require
from sordino.flower.parcel import RECORD, WEIGHT, ModelArrays, Parcel
from sordino.flower.privacy_mod import Mod, Next, PrivacyMod, Where, log, name_of, named_metrics, reply_of
from sordino.learning import draws, private_sgd
from sordino.learning.alone import Alone, Compute
from sordino.learning.models import Loss, ParameterLayout, parameter_layout
from sordino.learning.optimizers import SGD
from sordino.learning.private_sgd import PrivateTraining, Records
from sordino.learning.stacked_model import LOOP, StackedModel, probes
from sordino.methods.silo_dp import RECORDS, REMEMBERS, WHAT
from sordino.privacy.guarantee import Guarantee, Release, check_count
from sordino.privacy.ledger import ReportKey
from sordino.randomness import Keystream

require()

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402

UNCONTAINED = (
    "the app's own code computes on the records in the node's process, and one record at which it raised before "
    "private_training, ended that process, hung or took all memory would leave the server without weights: let "
    "`sordino client` train a network that Sordino ships"
)
UNDECLARED = (
    "nobody declared that the app's model keeps nothing from one record to the next and draws nothing "
    f"(record_privacy(..., per_record=True)), and no test can show it; besides, {UNCONTAINED}"
)
NOT_TRAINED = (
    "the app answered without private_training(model, optimizer, loader), which record_privacy needs: call it once in "
    "the function that trains, in the place of the loop"
)
_SILO = "silo-dp"
_ONE = np.arange(1)


@dataclass(frozen=True)
class NoiseTarget:
    """What so many rounds together shall protect, for one record added or removed."""

    epsilon: float
    delta: float
    rounds: int


def record_privacy(
    ledger: Where,
    *,
    shape: Sequence[int],
    announced_size: int,
    sampling_rate: float = 0.1,
    steps: int = 20,
    clip: float = 1.0,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    rounds: int | None = None,
    per_record: bool = False,
    dataset: str = "records",
    metrics: Iterable[str] = (),
) -> Mod:
    """A mod for `ClientApp(mods=[...])` of an app that trains by `private_training`.

    Public numbers, none of them computed from records: `shape` of a record, `announced_size` (about how many records a
    node has), the probability `sampling_rate` with which a record is in a step's batch, `steps` per message, and the L2
    norm `clip` of a record's gradient. The noise is `noise_multiplier` times clip, or the least that keeps `rounds`
    messages within (`epsilon`, `delta`). `per_record` declares that model, loss and data set treat every record by
    itself, so that none is normalised by the mean of all, say. `ledger`, `dataset` and `metrics` are as in
    `local_privacy`. The owner has to consent to the release: nothing is proven of it while a record can stop the app.
    """
    check_count("announced_size", announced_size)
    check_count("steps", steps)
    if not 2.0**-32 <= sampling_rate <= 1 or not 1e-30 <= clip <= 1e30:
        raise InvalidInput(
            f"sampling_rate is a probability from 2^-32 to 1 and clip a number above 0, got {sampling_rate!r} and "
            f"{clip!r}"
        )
    if (noise_multiplier is None) == (epsilon is None) or (epsilon is not None and rounds is None):
        raise InvalidInput(
            f"give noise_multiplier, or epsilon with delta and rounds, got noise_multiplier={noise_multiplier!r}, "
            f"epsilon={epsilon!r}, rounds={rounds!r}"
        )
    if noise_multiplier is not None and not 0 < noise_multiplier < math.inf:
        raise InvalidInput(f"noise_multiplier is a number above 0, got {noise_multiplier!r}")
    training = PrivateTraining(
        SGD(1.0),  # not used: the app's own optimiser moves the model
        clip=clip,
        noise_multiplier=noise_multiplier or 1.0,
        sampling_rate=sampling_rate,
        expected_batch=sampling_rate * announced_size,
        steps=steps,
    )
    target = None if epsilon is None or rounds is None else NoiseTarget(epsilon, delta, rounds)
    return RecordPrivacy(
        ledger, dataset, named_metrics(metrics), training, target, tuple(int(n) for n in shape), per_record
    )


@lru_cache(maxsize=8)
def _with_noise(training: PrivateTraining, target: NoiseTarget | None, values: int) -> PrivateTraining:
    """The training with the noise that its target asks for; it is sought once."""
    if target is None:
        return training
    return training.with_noise_for(target.epsilon, target.delta, target.rounds, values)


@dataclass(frozen=True)
class RecordPrivacy(PrivacyMod):
    """The mod itself; `record_privacy` makes one."""

    training: PrivateTraining
    target: NoiseTarget | None
    shape: tuple[int, ...]
    per_record: bool

    def release(self, key: ReportKey, values: int) -> Release:
        """The trained model: all that DP-SGD's sums reveal of one record. Buffers count as if they were trained."""
        found = Release(f"{name_of(key)}/{WHAT}", self.dataset, WHAT, self.of_sums(values))
        return found.unproven_of_records(UNCONTAINED if self.per_record else UNDECLARED)

    def of_sums(self, values: int) -> tuple[Guarantee, ...]:
        """What the noisy sums of a reply reveal of one record, as long as no record keeps the reply from leaving."""
        training = _with_noise(self.training, self.target, values)
        return tuple(training.guarantee(values, adjacency) for adjacency in RECORDS)

    def draw(self, message: Message, context: Context, call_next: Next, model: ModelArrays) -> Callable[[], Parcel]:
        """What `private_training` computed while the app was called; the app's own arrays are not looked at."""
        work = _MessageTraining(_with_noise(self.training, self.target, model.values), self.shape, model.arrays)
        token = _WORK.set(work)
        try:
            reply = reply_of(message, context, call_next)
        finally:
            _WORK.reset(token)
        if work.trained is None:
            raise InvalidInput(NOT_TRAINED)
        body = b"".join(_numbers(array).tobytes() for array in work.trained.values())
        metrics = self.allowed(reply)
        return lambda: Parcel(body, _SILO, "weights", metrics)

    def content(self, parcel: Parcel, model: ModelArrays | None) -> RecordDict:
        """A reply as strategies expect it: all arrays that came, those that were trained with their new values."""
        found = RecordDict({"metrics": MetricRecord({WEIGHT: 1, **parcel.metrics})})
        if model is not None:
            arrays = _filled(parcel.body, model.arrays)
            found[model.name] = ArrayRecord({key: Array(array) for key, array in arrays.items()})
        if parcel.terms:
            found[RECORD] = ConfigRecord({RECORD: replace(parcel, body=b"", metrics={}).encode()})
        return found


def _numbers(array: NDArray[Any]) -> NDArray[Any]:
    """An array in the byte order that travels."""
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))


def _filled(body: bytes, like: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays that `body` holds one after the other."""
    found, place = {}, 0
    for name, array in like.items():
        part = np.frombuffer(body, array.dtype.newbyteorder("<"), array.size, place).reshape(array.shape)
        found[name], place = part.astype(array.dtype), place + array.nbytes
    return found


# --- training ---------------------------------------------------------------------------------------------------------


def private_training(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any] | Callable[[], DataLoader[Any]],
    loss: Loss = functional.cross_entropy,
    *,
    fields: tuple[str, str] | None = None,
) -> float:
    """Train the model privately, in the place of the app's loop; returns the mean loss, which stays at the client.

    The model starts from the arrays in the server's message. Of the loader, the data set and `collate_fn` are used: a
    batch is a pair of inputs and labels, or a dictionary of two (else `fields` names them). `optimizer` is any of
    `torch.optim` for all trained parameters, newly made. A record that cannot be loaded or computed, or whose inputs
    have another shape than `record_privacy` says, adds nothing: whether there are such ones is in the node's log alone.
    Give a function that makes the loader if data may fail to open: then that shows to nobody else either.
    """
    work = _WORK.get()
    if work is None:
        raise InvalidInput(
            "private_training answers a message to train in an app with ClientApp(mods=[record_privacy(...)]): there "
            "is none of these here"
        )
    return work.train(model, optimizer, loader, loss, fields)


class _MessageTraining:
    """The training that answers one message."""

    def __init__(self, training: PrivateTraining, shape: tuple[int, ...], arrays: Mapping[str, NDArray[Any]]) -> None:
        self._training, self._shape, self._arrays = training, shape, arrays
        self._begun = False
        self.trained: dict[str, NDArray[Any]] | None = None  #: all arrays, once training is over

    def train(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: DataLoader[Any] | Callable[[], DataLoader[Any]],
        loss: Loss,
        fields: tuple[str, str] | None,
    ) -> float:
        if self._begun:
            raise InvalidInput("private_training was called twice for one message: the ledger pays for one")
        self._begun = True
        self._load(model)
        self._check_counted(model)
        layout = parameter_layout(model)
        _check_optimizer(optimizer, model)
        training = replace(self._training, loss=loss)
        stacked = self._checked(model, training)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        records = _RecordLoader(loader, self._shape, fields)
        with Alone() as compute:
            for _ in range(training.steps):
                noisy = _noisy_sum(stacked, training, parameters, records, compute)
                _move(parameters, layout, private_sgd.gradient_of(training, noisy)[0], optimizer)
        records.report()
        self.trained = {**self._arrays, **self._finite(model)}
        self._load(model, self.trained)
        return records.mean_loss

    def _load(self, model: nn.Module, arrays: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Start from the server's arrays, buffers included: what the app did before is not private."""
        state = {name: torch.from_numpy(np.array(array)) for name, array in (arrays or self._arrays).items()}
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            raise InvalidInput(f"the model must have the arrays of the server's message: {error}") from None

    def _check_counted(self, model: nn.Module) -> None:
        """Refuse to train what the ledger does not count: only arrays of real numbers are in the release's d."""
        trained = {n: p.numel() for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
        if wrong := [name for name in trained if self._arrays[name].dtype.kind != "f"]:
            raise InvalidInput(
                f"the server's array {wrong[0]!r} holds {self._arrays[wrong[0]].dtype}, and the model trains it: send "
                "trained parameters as real numbers (float32), or set requires_grad=False"
            )
        assert sum(trained.values()) <= sum(array.size for array in self._arrays.values() if array.dtype.kind == "f")

    def _checked(self, model: nn.Module, training: PrivateTraining) -> StackedModel:
        """Refuse a model that mixes records, draws, or remembers; public records decide, and none of the owner's."""
        private_sgd.check_model(model, training.loss, self._shape)
        start = torch.cat([p.detach().cpu().reshape(-1) for p in model.parameters() if p.requires_grad])
        labels = _labels(model, training.loss, self._shape)
        if labels is None or private_sgd.remembers(model, training.loss, start, self._shape, labels):
            raise InvalidInput(f"{REMEMBERS}. Records of the shape {self._shape} were tried")
        stacked = StackedModel(model, training.loss, LOOP, torch.device("cpu"))
        stacked.try_out(probes(self._shape))
        return stacked

    def _finite(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        """The trained parameters by name, tied ones by all of theirs; none where noise made them overflow."""
        named = model.named_parameters(remove_duplicate=False)
        found = {name: p.detach().cpu().numpy() for name, p in named if p.requires_grad}
        if not all(np.isfinite(array).all() for array in found.values()):
            log.error("training gave values that are not finite: the reply says 'no change'")
            return {}
        return {name: array.astype(self._arrays[name].dtype) for name, array in found.items()}


_WORK: ContextVar[_MessageTraining | None] = ContextVar("private_training", default=None)


def _labels(model: nn.Module, loss: Loss, shape: Sequence[int]) -> Tensor | None:
    """Labels of two public records that the loss takes: classes, or else numbers; None if it takes neither."""
    try:
        scores: Tensor = copy.deepcopy(model).cpu()(probes(shape)).detach()
    except Exception:
        return None
    for labels in (torch.tensor([0, 1]), torch.ones_like(scores)):
        try:
            loss(scores, labels)
        except Exception:
            continue
        return labels
    return None


def _check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    if own != trained:
        raise InvalidInput(
            f"the optimiser has {len(own)} tensors and the model trains {len(trained)}: make it with model.parameters()"
        )
    if optimizer.state:
        raise InvalidInput("the optimiser has taken steps, which were not private: make a new one for every message")


def _noisy_sum(
    stacked: StackedModel,
    training: PrivateTraining,
    parameters: Sequence[Tensor],
    records: _RecordLoader,
    compute: Compute,
) -> Tensor:
    """One step's sum `[1, d]` over a fresh Poisson sample, in whole grid steps, with its noise; keys are fresh too."""
    flat = torch.cat([p.detach().cpu().reshape(-1) for p in parameters])[None]
    sums = torch.zeros(flat.shape, dtype=torch.int64)
    for index in records.sample(training.sampling_rate):
        sums += compute(partial(records.add, index, partial(_sum, stacked, training, flat)))
    return private_sgd.noisy_sums(training, sums, _ONE, Keystream.fresh(), 0)


def _sum(stacked: StackedModel, training: PrivateTraining, parameters: Tensor, one: Records) -> private_sgd.IntegerSums:
    """What one record adds, computed by itself."""
    return private_sgd.sampled_sums(stacked, training, parameters, one, [_ONE], Keystream.fresh(), 0)


def _move(
    parameters: Sequence[Tensor], layout: ParameterLayout, gradient: Tensor, optimizer: torch.optim.Optimizer
) -> None:
    """One step of the app's optimiser on the noisy gradient."""
    for parameter, piece in zip(parameters, torch.split(gradient, list(layout.sizes)), strict=True):
        parameter.grad = piece.view(parameter.shape).to(parameter.device)
    optimizer.step()
    optimizer.zero_grad()


class _RecordLoader:
    """Records one at a time; those that cannot be used add nothing, and the owner's log has how many and why."""

    def __init__(
        self,
        loader: DataLoader[Any] | Callable[[], DataLoader[Any]],
        shape: tuple[int, ...],
        fields: tuple[str, str] | None,
    ) -> None:
        self._shape, self._fields = shape, fields
        self._used, self._unused, self._why, self._loss = 0, 0, "", 0.0
        self._count = 0
        try:
            self._loader = loader() if callable(loader) else loader
            self._count = len(self._loader.dataset)  # type: ignore[arg-type]
        except STOPPING:
            raise
        except BaseException as error:
            self._why = f"the data cannot be opened, or have no length ({type(error).__name__}: {error})"

    @property
    def mean_loss(self) -> float:
        return self._loss / max(1, self._used)

    def sample(self, rate: float) -> list[int]:
        """A fresh Poisson sample; of no records, none, which must look like any other."""
        if not self._count:
            return []
        return [int(index) for index in draws.poisson_samples(Keystream.fresh(), 0, 0, self._count, rate)]

    def add(self, index: int, sums: Callable[[Records], private_sgd.IntegerSums]) -> Tensor:
        """What one record adds to a sum; an error that it causes must not end the training on all others."""
        try:
            found = sums(self._record(index))
        except STOPPING:
            raise
        except BaseException as error:
            self._unused, self._why = self._unused + 1, f"{type(error).__name__}: {error}"
            return torch.zeros(1, dtype=torch.int64)
        self._used, self._loss = self._used + 1, self._loss + float(found.losses.sum())
        return found.sums

    def _record(self, index: int) -> Records:
        _reseed()
        collate = self._loader.collate_fn
        x, y = self._pair(collate([self._loader.dataset[index]]))
        if tuple(x.shape) != (1, *self._shape) or not x.is_floating_point() or len(y) != 1:
            raise ValueError(f"inputs {x.dtype} {list(x.shape[1:])} in the place of real numbers {list(self._shape)}")
        return Records(x.detach().float().cpu(), y.detach().cpu(), np.zeros(1, np.int64), np.ones(1, np.int64), _ONE)

    def _pair(self, batch: Any) -> tuple[Tensor, Tensor]:
        if self._fields is not None:
            return batch[self._fields[0]], batch[self._fields[1]]
        x, y = batch.values() if isinstance(batch, Mapping) else batch
        return x, y

    def report(self) -> None:
        """Tell the owner, in the log, what was left out."""
        if self._why:
            sampled = self._unused + self._used
            log.warning("%d of %d sampled records added nothing: %s", self._unused, sampled, self._why)


def _reseed() -> None:
    """Let what a data set draws (augmentation) be fresh for each record, and not depend on the records before it."""
    seed = secrets.randbits(32)
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the generator that data sets use)
    random.seed(seed)


__all__ = ["RecordPrivacy", "private_training", "record_privacy"]
