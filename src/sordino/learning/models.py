"""The networks of the papers, by name; their parameters as one flat vector; and where each of them starts.

Every network here runs under `torch.func.vmap` and `functional_call`: nothing in it writes to a parameter, branches on
data or draws random numbers. Dropout multiplies masks that are passed in, drawn from the client's own stream. Batch
norm is PyTorch's: under `vmap` its buffers are stacked and passed beside the parameters.
"""

from __future__ import annotations

import copy
import inspect
import math
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain, groupby, islice
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge, Lt, MaxLen, MinLen
from numpy.typing import NDArray
from pydantic import ConfigDict, ValidationError, validate_call
from pydantic_core import ErrorDetails
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase as TracksStatistics

from sordino.errors import InvalidInput
from sordino.parts import registry
from sordino.parts.words import nearest
from sordino.randomness import Keystream, Purpose, Words

CPU = torch.device("cpu")
Shape = tuple[int, ...]
Loss = Callable[[Tensor, Tensor], Tensor]  #: scores [B, ...] and labels [B] -> the mean loss

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "elu": nn.ELU, "tanh": nn.Tanh}

# What options may be: `build` checks them by these types.
Width = Annotated[int, Ge(1)]
Widths = Annotated[Sequence[Width], MinLen(1)]
Classes = Annotated[int, Ge(1)]  #: scores that a network gives: one for each class or label, or for a number
Rate = Annotated[float, Ge(0), Lt(1)]
Norm = Literal["batch", "group", "none"]


# --- networks --------------------------------------------------------------------------------------------------------


class MaskedDropout(nn.Module):
    """A place for dropout: multiplies the mask it is given, and does nothing without one."""

    def __init__(self, rate: float, mask_shape: Shape) -> None:
        super().__init__()
        self.rate = rate
        self.mask_shape = mask_shape  #: of one record; of one number per channel for channel dropout

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        return input if mask is None else input * mask

    def mask(self, words: Words) -> Tensor:
        """Zeros (with probability `rate`) and 1/(1-rate), `[..., *mask_shape]`, from one word each."""
        kept = words >= np.uint32(min(round(self.rate * 2**32), 2**32 - 1))
        scaled = kept.astype(np.float32) / np.float32(1 - self.rate)
        return torch.from_numpy(scaled.reshape(*words.shape[:-1], *self.mask_shape))


class Network(nn.Sequential):
    """Named layers in a row, with places for dropout masks and a split after the layer called `flatten`."""

    def forward(self, input: Tensor, masks: Sequence[Tensor] = ()) -> Tensor:
        """Scores `[B, classes]` of records `[B, ...]`; one mask per place of dropout, or none: then dropout is off."""
        if masks and len(masks) != len(self.dropouts):
            raise InvalidInput(f"this network takes {len(self.dropouts)} dropout masks or none, got {len(masks)}")
        waiting = iter(masks)
        for layer in self:
            input = layer(input, next(waiting, None)) if isinstance(layer, MaskedDropout) else layer(input)
        return input

    @property
    def dropouts(self) -> list[MaskedDropout]:
        """The places of dropout, in the order in which their masks are given."""
        return [layer for layer in self if isinstance(layer, MaskedDropout)]

    @property
    def mask_words(self) -> int:
        """How many random words the masks of one record take."""
        return sum(math.prod(place.mask_shape) for place in self.dropouts)

    def masks(self, words: Words) -> tuple[Tensor, ...]:
        """The masks `[..., *mask_shape]` of records, from `[..., mask_words]` words of their client's own stream."""
        if words.dtype != np.uint32 or words.ndim < 1 or words.shape[-1] != self.mask_words:
            raise InvalidInput(f"masks take {self.mask_words} uint32 words per record, got {words.dtype} {words.shape}")
        ends = list(accumulate(math.prod(place.mask_shape) for place in self.dropouts))
        pieces = np.split(words, ends[:-1], axis=-1)
        return tuple(place.mask(piece) for place, piece in zip(self.dropouts, pieces, strict=False))

    def extractor(self) -> Network:
        """The layers up to and with `flatten`, sharing their parameters: records `[B, ...]` to features `[B, r]`."""
        names = list(self._modules)
        if "flatten" not in names:
            raise InvalidInput("this network has no layer 'flatten' after which it could be split")
        return Network(OrderedDict(islice(self._modules.items(), names.index("flatten") + 1)))


class _Layers:
    """Builds a `Network` layer by layer and follows the shape of one record, so that a misfit is said in words."""

    def __init__(self, model: str, input_shape: Sequence[int]) -> None:
        self.model = model
        self.input_shape = self.shape = tuple(input_shape)
        self._named: OrderedDict[str, nn.Module] = OrderedDict()

    def images(self) -> _Layers:
        """Refuse records that are not channels x height x width."""
        if len(self.shape) != 3:
            raise InvalidInput(
                f"{self.model} takes images of channels x height x width, got input_shape {list(self.input_shape)}: "
                "reshape the records, or take logistic or mlp"
            )
        return self

    def _add(self, name: str, layer: nn.Module, shape: Shape) -> _Layers:
        self._named[name] = layer
        self.shape = shape
        return self

    def _need(self, name: str, pixels: int) -> None:
        if min(self.shape[1:]) < pixels:
            left = "x".join(str(side) for side in self.shape[1:])
            raise InvalidInput(
                f"input_shape {list(self.input_shape)} is too small for {self.model}: {left} pixels reach its layer "
                f"'{name}', which needs {pixels}x{pixels}; take larger images, or logistic or mlp, which fit any shape"
            )

    def conv(self, name: str, channels: int, kernel: int, padding: int = 0) -> _Layers:
        self._need(name, kernel - 2 * padding)
        sides = (side + 2 * padding - kernel + 1 for side in self.shape[1:])
        return self._add(name, nn.Conv2d(self.shape[0], channels, kernel, padding=padding), (channels, *sides))

    def pool(self, name: str) -> _Layers:
        self._need(name, 2)
        return self._add(name, nn.MaxPool2d(2), (self.shape[0], *(side // 2 for side in self.shape[1:])))

    def norm(self, number: int, kind: str) -> _Layers:
        """Batch norm `bn<number>`, group norm `gn<number>` or nothing; both norms have 2 parameters per channel."""
        channels = self.shape[0]
        if kind == "batch":
            layer = nn.BatchNorm2d(channels) if len(self.shape) == 3 else nn.BatchNorm1d(channels)
            return self._add(f"bn{number}", layer, self.shape)
        if kind == "group":
            return self._add(f"gn{number}", nn.GroupNorm(math.gcd(8, channels), channels), self.shape)
        return self

    def activate(self, name: str, kind: str = "relu") -> _Layers:
        return self._add(name, ACTIVATIONS[kind](), self.shape)

    def drop(self, name: str, rate: float) -> _Layers:
        return self._add(name, MaskedDropout(rate, self.shape), self.shape) if rate else self

    def drop_channels(self, name: str, rate: float) -> _Layers:
        return self._add(name, MaskedDropout(rate, (self.shape[0], 1, 1)), self.shape) if rate else self

    def flatten(self) -> _Layers:
        return self._add("flatten", nn.Flatten(), (math.prod(self.shape),))

    def dense(self, name: str, units: int) -> _Layers:
        return self._add(name, nn.Linear(self.shape[0], units), (units,))

    def network(self) -> Network:
        return Network(self._named)


# --- builders --------------------------------------------------------------------------------------------------------


def _logistic(input_shape: Widths, classes: Classes) -> nn.Module:
    """Logistic regression, softmax (`logistic`) or one-versus-rest (`logistic-ovr`): the same network, another loss.

    Wu et al., personalised LDP-FL, sections 5.2 and 5.3, take the latter as scikit-learn's `SGDClassifier` has it.
    features * classes + classes parameters: 650 on digits, 7,850 on MNIST, 385 on Covertype.
    """
    return _Layers("logistic", input_shape).flatten().dense("fc", classes).network()


def _mlp(input_shape: Widths, classes: Classes, *, hidden: Widths = (200, 200)) -> nn.Module:
    """Dense layers with ReLU; by default the 2NN of McMahan et al. 2017, section 3: 199,210 parameters on MNIST."""
    layers = _Layers("mlp", input_shape).flatten()
    for number, width in enumerate(hidden, 1):
        layers.dense(f"fc{number}", width).activate(f"relu{number}")
    return layers.dense(f"fc{len(hidden) + 1}", classes).network()


def _lenet(input_shape: Widths, classes: Classes) -> nn.Module:
    """LeNet-5 with ReLU and maxima: two convolutions of 5x5 and two pools of 2x2, as WebFed's section 4 says.

    It leaves widths and padding open; these are LeCun et al. 1998's (6, 16, 120, 84; 32x32 by padding 28x28 with 2).
    61,706 parameters on 1x28x28.
    """
    layers = _Layers("lenet", input_shape).images()
    layers.conv("conv1", 6, 5, padding=2).activate("relu1").pool("pool1")
    layers.conv("conv2", 16, 5).activate("relu2").pool("pool2").flatten()
    layers.dense("fc1", 120).activate("relu3").dense("fc2", 84).activate("relu4").dense("fc3", classes)
    return layers.network()


def _cnn_mnist(input_shape: Widths, classes: Classes, *, dropout: Rate = 0.0) -> nn.Module:
    """The two-layer CNN of PyTorch's MNIST example: LDP-FL (Sun et al.), section 5, says "a two-layer CNN" and PyTorch.

    21,840 parameters on 1x28x28. The example has dropout 0.5, on whole channels after conv2 and before fc2.
    """
    layers = _Layers("cnn-mnist", input_shape).images()
    layers.conv("conv1", 10, 5).pool("pool1").activate("relu1")
    layers.conv("conv2", 20, 5).drop_channels("drop1", dropout).pool("pool2").activate("relu2").flatten()
    layers.dense("fc1", 50).activate("relu3").drop("drop2", dropout).dense("fc2", classes)
    return layers.network()


def _cnn_wide(
    input_shape: Widths,
    classes: Classes,
    *,
    channels: Annotated[Widths, MinLen(2), MaxLen(2)] = (32, 64),
    hidden: Width = 128,
    padding: Literal[0, 1, 2] = 0,
) -> nn.Module:
    """Two convolutions of 5x5 and one dense layer, wider than `cnn-mnist`: 184,586 parameters on 1x28x28.

    With `hidden = 512, padding = 2` it is the CNN of McMahan et al. 2017, section 3: 1,663,370 parameters.
    """
    first, second = channels
    layers = _Layers("cnn-wide", input_shape).images()
    layers.conv("conv1", first, 5, padding).activate("relu1").pool("pool1")
    layers.conv("conv2", second, 5, padding).activate("relu2").pool("pool2").flatten()
    layers.dense("fc1", hidden).activate("relu3").dense("fc2", classes)
    return layers.network()


def _ldp_fed(input_shape: Widths, classes: Classes, *, norm: Norm = "batch") -> nn.Module:
    """The network of LDP-Fed (Truex et al. 2020), section 4: 29,034 parameters on 1x28x28, in five layers.

    conv1 416, bn1 32, conv2 12,832, bn2 64, fc 15,690: the widths follow from the count and the 1,568 units it names.
    """
    layers = _Layers("ldp-fed", input_shape).images()
    layers.conv("conv1", 16, 5, padding=2).norm(1, norm).activate("relu1").pool("pool1")
    layers.conv("conv2", 32, 5, padding=2).norm(2, norm).activate("relu2").pool("pool2").flatten()
    return layers.dense("fc", classes).network()


def _vgg_small(
    input_shape: Widths,
    classes: Classes,
    *,
    channels: Widths = (32, 64, 128),
    hidden: Width = 128,
    norm: Norm = "group",
) -> nn.Module:
    """A small VGG for CIFAR-10: LDP-FL (Sun et al.), section 5, names one "re-designed" and gives no widths.

    Pairs of 3x3 convolutions, each pair with a pool, then one dense layer: 551,466 parameters on 3x32x32, of which 896
    are group norm's (550,570 with `norm = "none"`). Group norm does not mix records, so record-level DP is possible.
    """
    layers = _Layers("vgg-small", input_shape).images()
    for block, width in enumerate(channels, 1):
        for number in (2 * block - 1, 2 * block):
            layers.conv(f"conv{number}", width, 3, padding=1).norm(number, norm).activate(f"relu{number}")
        layers.pool(f"pool{block}")
    layers.flatten().dense("fc1", hidden).activate(f"relu{2 * len(channels) + 1}")
    return layers.dense("fc2", classes).network()


def _ldpfl_mnist(
    input_shape: Widths, classes: Classes, *, hidden: Width = 512, norm: Norm = "batch", dropout: Rate = 0.2
) -> nn.Module:
    """The local CNN of LDPFL (Chamikara et al.) for MNIST, appendix A and Fig. 13b: 1,024 features on 1x28x28.

    Filters, pools and the numbers of the five batch norms (5, 9, 12, 17, 20: after activations and pools) are stated;
    the dense layer of 512 and dropout 0.2 are lost with the figure, and chosen. 598,250 parameters on 1x28x28.
    """
    layers = _Layers("ldpfl-mnist", input_shape).images()
    layers.conv("conv1", 32, 3).activate("relu1").norm(1, norm)
    layers.conv("conv2", 32, 3).activate("relu2").pool("pool1").norm(2, norm)
    layers.conv("conv3", 64, 3).activate("relu3").norm(3, norm)
    layers.conv("conv4", 64, 3).activate("relu4").pool("pool2").flatten().norm(4, norm)
    layers.dense("fc1", hidden).activate("relu5").norm(5, norm)
    return layers.drop("drop1", dropout).dense("fc2", classes).network()


def _ldpfl_cifar(
    input_shape: Widths,
    classes: Classes,
    *,
    norm: Norm = "batch",
    activation: Literal["relu", "elu", "tanh"] = "elu",
    dropout: Annotated[Sequence[Rate], MinLen(3), MaxLen(3)] = (0.2, 0.3, 0.4),
) -> nn.Module:
    """The local CNN of LDPFL (Chamikara et al.) for CIFAR-10, SVHN and Fashion-MNIST, appendix A and Fig. 13a.

    2,048 features and 308,394 parameters on 3x32x32; 1,152 and 298,858 on 1x28x28. The stated filters, layer numbers
    (3, 6, pool 9, 11, 14, pool 17, 19, 22, pool 25), optimiser and regulariser are those of a widespread Keras example
    for CIFAR-10, from which activation and dropout, lost with the figure, are taken.
    """
    layers = _Layers("ldpfl-cifar", input_shape).images()
    for block, (width, rate) in enumerate(zip((32, 64, 128), dropout, strict=True), 1):
        for number in (2 * block - 1, 2 * block):
            layers.conv(f"conv{number}", width, 3, padding=1).activate(f"{activation}{number}", activation).norm(
                number, norm
            )
        layers.pool(f"pool{block}").drop(f"drop{block}", rate)
    return layers.flatten().dense("fc", classes).network()


def _ldpfl_dense(input_shape: Widths, classes: Classes, *, hidden: Widths = (512,)) -> nn.Module:
    """The federated dense network of LDPFL (Chamikara et al.) over the r*l randomised bits of a record.

    Its widths are lost with Fig. 13. With 512: 5,248,522 parameters on MNIST's 10,240 bits, 10,491,402 on the 20,480 of
    CIFAR-10 and SVHN, 5,903,882 on Fashion-MNIST's 11,520.
    """
    return _mlp(input_shape, classes, hidden=hidden)


# --- losses ----------------------------------------------------------------------------------------------------------


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Softmax cross-entropy of scores `[B, classes]` for labels `[B]`, the mean over records."""
    return F.cross_entropy(scores, labels)


def one_versus_rest(scores: Tensor, labels: Tensor) -> Tensor:
    """The log losses of one binary classifier per class, summed over classes, the mean over records `[B]`.

    The sum leaves every class with the gradient it would have alone, as in scikit-learn's `SGDClassifier`.
    """
    truth = labels.unsqueeze(-1) == torch.arange(scores.shape[-1], device=scores.device)
    losses = F.binary_cross_entropy_with_logits(scores, truth.to(scores.dtype), reduction="none")
    return losses.sum(-1).mean()


# --- registry --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Description:
    build: Callable[..., nn.Module]
    loss: Loss = cross_entropy

    def __call__(self, name: str, options: Mapping[str, object]) -> nn.Module:
        """The network with these options, which are checked by their types."""
        try:
            return validate_call(config=ConfigDict(strict=True))(self.build)(**options)
        except ValidationError as error:
            raise InvalidInput("; ".join(self._said(name, wrong) for wrong in error.errors())) from None

    def _said(self, name: str, wrong: ErrorDetails) -> str:
        option = str(wrong["loc"][0])
        if wrong["type"] == "unexpected_keyword_argument":
            allowed = list(inspect.signature(self.build).parameters)[2:]
            known = f"{nearest(option, allowed)}allowed: {', '.join(allowed) or 'none'}"
            return f"unknown option of {name} {option!r}; {known}"
        return f"{option} of {name}: {wrong['msg']}, got {wrong['input']!r}"


_MODELS = {
    "logistic": _Description(_logistic),
    "logistic-ovr": _Description(_logistic, one_versus_rest),
    "mlp": _Description(_mlp),
    "lenet": _Description(_lenet),
    "cnn-mnist": _Description(_cnn_mnist),
    "cnn-wide": _Description(_cnn_wide),
    "ldp-fed": _Description(_ldp_fed),
    "vgg-small": _Description(_vgg_small),
    "ldpfl-mnist": _Description(_ldpfl_mnist),
    "ldpfl-cifar": _Description(_ldpfl_cifar),
    "ldpfl-dense": _Description(_ldpfl_dense),
}


def names() -> tuple[str, ...]:
    """The models that `build` knows by name."""
    return tuple(_MODELS)


def build(name: str, seed: int = 0, /, *, input_shape: Sequence[int], classes: int, **options: object) -> nn.Module:
    """The network `name` (or `package.module:Class`) for records of `input_shape`, with one score per class.

    What it draws from the global generators of PyTorch, NumPy and Python when it is built follows from `seed`; the
    generators themselves are left alone.
    """
    module = untried(name, seed, input_shape=input_shape, classes=classes, **options)
    if is_own(name):
        with _every_seed(0):
            _try(name, module, tuple(input_shape), classes)
    return module


@contextmanager
def _every_seed(seed: int) -> Iterator[None]:
    """The global generators of PyTorch, NumPy and Python at a seed for a while, and afterwards as before."""
    numpys, pythons = np.random.get_state(), random.getstate()  # noqa: NPY002 (others draw from it)
    try:
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF])  # noqa: NPY002
        random.seed(seed)
        with torch_seed(seed):
            yield
    finally:
        np.random.set_state(numpys)  # noqa: NPY002
        random.setstate(pythons)


def untried(name: str, seed: int = 0, /, *, input_shape: Sequence[int], classes: int, **options: object) -> nn.Module:
    """The network as `build` makes it; one's own is not tried on any record yet, so that its size can be told first."""
    with _every_seed(seed):
        if own := _own_address(name):
            return _imported(own, tuple(input_shape), classes, options)
        return _described(name)(name, {"input_shape": input_shape, "classes": classes, **options})


def loss_for(name: str) -> Loss:
    """The loss that goes with a model, `(scores [B, classes], labels [B]) -> mean`; cross-entropy for imported ones."""
    return cross_entropy if is_own(name) else _described(name).loss


def feature_size(network: Network, input_shape: Sequence[int]) -> int:
    """r: how many features the network's extractor makes of one record."""
    return math.prod(output_shape(network.extractor(), tuple(input_shape))[1:])


def is_own(name: object) -> bool:
    """Whether a model is somebody's own: named by its address, or offered by an installed package."""
    return _own_address(name) is not None


def _own_address(name: object) -> str | None:
    if not isinstance(name, str) or name in _MODELS:
        return None
    return registry.own_address("model", name)


def _described(name: str) -> _Description:
    if name not in _MODELS:
        known = f"{nearest(name, names())}allowed: {', '.join(names())}"
        raise InvalidInput(f"unknown model {name!r}; {known}; or any nn.Module as 'package.module:Class'")
    return _MODELS[name]


# --- imported models -------------------------------------------------------------------------------------------------


def _imported(path: str, shape: Shape, classes: int, options: Mapping[str, object]) -> nn.Module:
    """A user's own module, made with `options` (and `input_shape` and `classes` where it asks for them)."""
    make = registry.load(path)
    allowed = "a subclass of torch.nn.Module, or a function that returns a module"
    if not callable(make) or (isinstance(make, type) and not issubclass(make, nn.Module)):
        raise InvalidInput(f"model {path!r} must name {allowed}, got {make!r}")
    try:
        asked = inspect.signature(make).parameters
        offered = {"input_shape": shape, "classes": classes}
        made = make(**{name: value for name, value in offered.items() if name in asked}, **options)
    except Exception as error:
        raise InvalidInput(f"{path} could not be made with options {dict(options)!r}: {error}") from error
    # Opacus wraps a module in hooks that keep every record's activations: gradients of single records are taken here.
    made = made.to_standard_module() if hasattr(made, "to_standard_module") else made
    if not isinstance(made, nn.Module):
        raise InvalidInput(f"model {path!r} must name {allowed}, and it returned {made!r}")
    return made


def _try(path: str, module: nn.Module, shape: Shape, classes: int) -> None:
    """Refuse a user's own module that does not give one score per class of two records."""
    try:
        found = output_shape(module, shape)
    except Exception as error:
        raise InvalidInput(f"{path} failed on two records of input_shape {list(shape)}: {error}") from error
    if found != (2, classes):
        raise InvalidInput(f"{path} must give [2, {classes}] scores for two records, got {list(found)}")
    parameter_layout(module)


def output_shape(module: nn.Module, input_shape: Shape) -> Shape:
    """What two records of zeros give, in evaluation mode: running statistics stay as they are."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            scores = module(torch.zeros(2, *input_shape))
    finally:
        for part, training in modes:
            part.training = training
    if not isinstance(scores, Tensor):
        raise InvalidInput(f"its output must be one tensor of scores, got {type(scores).__name__}")
    return tuple(scores.shape)


# --- flat vectors ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerSlice:
    """The columns `start .. stop-1` of the flat vector that belong to one layer."""

    name: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def columns(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class ParameterLayout:
    """How the trainable parameters lie in one float32 vector: tensor after tensor in `named_parameters()` order.

    Each tensor is written row by row (C order); the tensors of one layer lie side by side.
    """

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    sizes: tuple[int, ...]
    layers: tuple[LayerSlice, ...]

    @property
    def size(self) -> int:
        """d, the length of the vector."""
        return sum(self.sizes)

    def flatten(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """One vector `[d]` of the named tensors, or `[K, d]` of tensors that are stacked along a leading axis of K."""
        lead = parameters[self.names[0]].shape[: -len(self.shapes[0]) or None]
        pieces = [parameters[name].reshape((*lead, size)) for name, size in zip(self.names, self.sizes, strict=True)]
        return torch.cat(pieces, dim=-1)

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """The named tensors of a vector `[d]`, or stacked ones of `[K, d]`: views of it, not copies."""
        if vector.dtype != torch.float32 or vector.ndim not in (1, 2) or vector.shape[-1] != self.size:
            found = f"{vector.dtype} {list(vector.shape)}"
            raise InvalidInput(f"a flat vector is float32 [{self.size}] or [K, {self.size}], got {found}")
        pieces = torch.split(vector, list(self.sizes), dim=-1)
        named = zip(self.names, self.shapes, pieces, strict=True)
        return {name: piece.reshape((*vector.shape[:-1], *shape)) for name, shape, piece in named}


def parameter_layout(module: nn.Module) -> ParameterLayout:
    """The layout of a module's trainable parameters; a layer is a submodule with parameters of its own."""
    found = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not found:
        raise InvalidInput(f"{type(module).__name__} has no trainable parameters: there is nothing to learn or send")
    for name, parameter in found.items():
        if parameter.dtype != torch.float32 or not parameter.numel():
            raise InvalidInput(f"{name} must be float32 and not empty, got {parameter.dtype} {[*parameter.shape]}")
    shapes = tuple(tuple(parameter.shape) for parameter in found.values())
    sizes = tuple(parameter.numel() for parameter in found.values())
    return ParameterLayout(tuple(found), shapes, sizes, _layers(tuple(found), sizes))


def call(module: nn.Module, tensors: Mapping[str, Tensor], args: tuple[object, ...]) -> Tensor:
    """`module(*args)` with these tensors in the place of its own, wherever the module uses them.

    A tensor that several submodules share is given once, by the name that `named_parameters()` has for it. A submodule
    that has several names is one: PyTorch's own tying of weights would leave it with the tensors of this call.
    """
    given, first = dict(tensors), dict[int, str]()
    for owner, part in module.named_modules():
        each = {"recurse": False, "remove_duplicate": False}
        for own, tensor in chain(part.named_parameters(**each), part.named_buffers(**each)):
            name = f"{owner}.{own}".lstrip(".")
            if (known := first.setdefault(id(tensor), name)) != name and known in tensors:
                given[name] = tensors[known]
    found: Tensor = functional_call(module, given, args, tie_weights=False)
    return found


def _layers(named: Sequence[str], sizes: Sequence[int]) -> tuple[LayerSlice, ...]:
    ends = [0, *accumulate(sizes)]
    layers = []
    for owner, group in groupby(range(len(named)), key=lambda index: named[index].rpartition(".")[0]):
        members = list(group)
        layers.append(LayerSlice(owner or "(top)", ends[members[0]], ends[members[-1] + 1]))
    return tuple(layers)


# --- where training starts -------------------------------------------------------------------------------------------

_UNIFORM = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
_NORMALISING = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


def initial_parameters(module: nn.Module, seed: int) -> dict[str, Tensor]:
    """Where training starts: PyTorch's own rules, drawn from the seed's keystream instead of the global generator.

    Dense layers and convolutions are uniform on [-b, b) with b = 1/sqrt(fan_in); scales are 1 and shifts 0. Tensor i of
    `named_parameters()` takes its words from stream (client 0, round 0, INIT, i). A layer of another kind runs its own
    `reset_parameters()`, seeded by the first two words of its stream. The module itself is left as it is.
    """
    stream = Keystream.simulation(seed, [0], 0)
    fresh = copy.deepcopy(module).cpu()
    numbers = {id(parameter): number for number, (_, parameter) in enumerate(fresh.named_parameters())}
    with torch.no_grad():
        for part in reversed(list(fresh.modules())):  # children first, as they are constructed
            own = [parameter for parameter in part.parameters(recurse=False) if parameter.requires_grad]
            if own:
                _initialise(part, own, stream, numbers)
    return {name: parameter.detach() for name, parameter in fresh.named_parameters() if parameter.requires_grad}


def own_parameters(module: nn.Module) -> dict[str, Tensor]:
    """The trainable parameters as the module holds them: training starts there where it comes with weights."""
    found = {name: value.detach().cpu() for name, value in module.named_parameters() if value.requires_grad}
    if wrong := [name for name, value in found.items() if not torch.isfinite(value).all()]:
        raise InvalidInput(
            f"{type(module).__name__} starts from numbers that are not finite ({', '.join(wrong)}): give it other "
            'weights, or let the seed draw them with model.start = "fresh"'
        )
    return found


def load_weights(module: nn.Module, file: Path, key: str, model: str) -> None:
    """Give a module the parameters and buffers of a file: all of them, and no others.

    Errors name the file by its `key` in the recipe, and the module as `model`.
    """
    from safetensors import SafetensorError  # workers need none of it
    from safetensors.torch import load_model

    if not file.is_file():
        raise InvalidInput(f"{key} = {str(file)!r} is no file: give the path of a .safetensors")
    try:
        load_model(module, file, strict=True)
    except (SafetensorError, OSError) as error:
        raise InvalidInput(
            f"{key} = {str(file)!r} could not be read as safetensors ({error}): write it with "
            "safetensors.torch.save_model(network, file)"
        ) from error
    except RuntimeError as error:
        raise InvalidInput(
            f"{key} = {str(file)!r} does not fit {model}: give all its parameters and buffers, and no others. {error}"
        ) from error


def _initialise(part: nn.Module, own: list[nn.Parameter], stream: Keystream, numbers: Mapping[int, int]) -> None:
    if type(part) in _UNIFORM:
        bound = 1 / math.sqrt(part.weight[0].numel())  # type: ignore[index]
        for parameter in own:  # float32(k * bound * 2^-23), k = (word >> 8) - 2^23: one product is all that is rounded
            words = _init_words(stream, numbers[id(parameter)], parameter.numel())
            steps = (words >> np.uint32(8)).astype(np.float32) - np.float32(2**23)
            parameter.copy_(torch.from_numpy(steps * np.float32(bound * 2**-23)).reshape(parameter.shape))
    elif type(part) in _NORMALISING:
        for parameter in own:
            parameter.fill_(1.0 if parameter is part.weight else 0.0)
    else:
        _reset(part, stream, numbers[id(own[0])])


def _reset(part: nn.Module, stream: Keystream, tensor: int) -> None:
    reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
    if reset is None:
        raise InvalidInput(
            f"{type(part).__name__} holds parameters of its own and no rule to draw them anew: give it a method "
            'reset_parameters(), or start from those it is built with (model.start = "as-built")'
        )
    low, high = (int(word) for word in _init_words(stream, tensor, 2))
    with torch_seed(high << 32 | low):
        reset()


def _init_words(stream: Keystream, tensor: int, count: int) -> NDArray[np.uint32]:
    return stream.words(np.zeros(1, np.intp), Purpose.INIT, tensor, 0, count).reshape(count)


#: PyTorch's global generators: whoever seeds them, or builds what draws from them, holds this
GENERATORS = threading.RLock()


@contextmanager
def torch_seed(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """PyTorch's generators of the processor and of this device at a seed for a while, and afterwards as before."""
    gpus = [device] if device.type == "cuda" else []
    with GENERATORS, torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


# --- frozen parts ----------------------------------------------------------------------------------------------------


def frozen_parts(module: nn.Module) -> set[nn.Module]:
    """The submodules that have parameters and train none of them, with all that is in them."""
    found: set[nn.Module] = set()
    for part in module.modules():
        own = list(part.parameters())
        if own and not any(parameter.requires_grad for parameter in own):
            found.update(part.modules())
    return found


def computes_by_class(module: nn.Module) -> bool:
    """Whether all parts compute what their classes say: no hooks, and no object with a `forward` of its own."""
    return not any(
        "forward" in vars(part)
        or part._forward_pre_hooks
        or part._forward_hooks
        or part._backward_pre_hooks
        or part._backward_hooks
        for part in module.modules()
    )


def set_training(module: nn.Module) -> None:
    """Put a module into training mode, but its frozen parts into evaluation mode: they stay as they were built."""
    module.train()
    for part in frozen_parts(module):
        part.training = False


# --- batch norm ------------------------------------------------------------------------------------------------------


def has_batch_norm(module: nn.Module) -> bool:
    """Whether records of a batch are mixed by batch norm: then no record-level guarantee by per-example clipping."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in statistics_keepers(module).values())


def statistics_keepers(module: nn.Module) -> dict[str, TracksStatistics]:
    """The norm layers that may keep statistics of the client's data, by name; frozen ones keep those they came with."""
    frozen = frozen_parts(module)
    named = module.named_modules()
    return {name: part for name, part in named if isinstance(part, TracksStatistics) and part not in frozen}


def running_statistics(module: nn.Module) -> tuple[str, ...]:
    """The buffers in which norm layers keep means and variances of the client's data, and how many batches they saw."""
    owners = statistics_keepers(module).items()
    return tuple(f"{name}.{buffer}".lstrip(".") for name, part in owners for buffer, _ in part.named_buffers())


def released_buffers(module: nn.Module, policy: str) -> tuple[str, ...]:
    """Which buffers leave a client under a policy: none, unless the recipe says `release`.

    `refuse`: a module with running statistics is an error. `local`: they stay with the client. `release`: means and
    variances are sent through a mechanism, in the same release as the parameters; the number of batches never is.
    """
    statistics = running_statistics(module)
    if policy == "refuse" and statistics:
        group = "--set model.options.norm=group" if type(module) is Network else "nn.GroupNorm in your class"
        raise InvalidInput(
            f"the model keeps running statistics of its client's data ({', '.join(statistics)}), which may not leave "
            f"silently: use group norm ({group}), or keep them local (--set model.buffers=local), or send them through "
            "a mechanism (--set model.buffers=release)"
        )
    if policy == "release":
        return tuple(name for name in statistics if not name.endswith("num_batches_tracked"))
    return ()
