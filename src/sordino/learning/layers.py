"""Layers and a loss for many clients at once, where PyTorch's own rules under `vmap` are slow or mix clients.

Under `vmap` PyTorch turns the convolutions of K clients into one convolution of K groups, which its processor kernels
compute at half the speed of an ordinary one, and its 2x2 max pooling takes a third of a small network's time: here they
are those of convolution.py. Batch norm of K clients would become one of K times the channels, whose sums are rounded
differently with K: here clients stay the slowest axis. Cross-entropy would be written out in
Python on every step, after half a second for loading what that needs. On a GPU a dense layer's gradient would come
turned around, to be copied into place.

Results are those of PyTorch's own operators up to rounding (pooling: exactly). What these kernels do not cover
(groups, dilation, other pooling windows) is left to PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sordino.learning.convolution import BATCH_LAST, BATCH_SECOND, Convolution, Pair, pool, pool_gradient

Operation = Callable[..., Tensor]  #: tensors of one client, or of all with a client axis first, to the layer's output
Context = Any  #: what PyTorch hands to an autograd function, which keeps there what it likes
FEW = 8  #: clients that leave a GPU idle where each is one small product
Settings = dict[str, Any]  #: what a caller may say beside the tensors, in the order of PyTorch's arguments
BATCH_NORM: Settings = {"training": False, "momentum": 0.1, "eps": 1e-5}
CONVOLUTION: Settings = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
POOL: Settings = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
CROSS_ENTROPY: Settings = {
    "weight": None, "size_average": None, "ignore_index": -100, "reduce": None, "reduction": "mean",
    "label_smoothing": 0.0,
}  # fmt: skip


class _ManyConvolutions(torch.autograd.Function):
    """`[K, B, C, H, W]` by `[K, O, C, kh, kw]` (convolution.py)."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor, bias: Tensor | None, convolution: Convolution) -> Tensor:
        y, ctx.columns = convolution.forward(x.permute(BATCH_LAST).contiguous(), weight)
        ctx.save_for_backward(weight)
        ctx.convolution, ctx.width, ctx.has_bias = convolution, x.shape[4], bias is not None
        if bias is not None:
            y += bias[:, :, None, None, None]
        return y.permute(BATCH_SECOND)

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weight,), gradient = ctx.saved_tensors, gradient.permute(BATCH_LAST)
        of_weight, of_x = ctx.convolution.weight_gradient(gradient, ctx.columns, weight.shape), None
        if ctx.needs_input_grad[0]:
            of_x = ctx.convolution.input_gradient(gradient, ctx.columns, weight, ctx.width).permute(BATCH_SECOND)
        ctx.columns = None
        return of_x, of_weight, gradient.sum((2, 3, 4)) if ctx.has_bias else None, None


class _ManyPools(torch.autograd.Function):
    """2x2 max pooling of `[K, B, C, H, W]` (convolution.py)."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        pooled, at_left, at_upper = pool(x.permute(BATCH_LAST))
        ctx.save_for_backward(at_left, at_upper)
        ctx.shape, ctx.stride = x.shape, x.stride()
        return pooled.permute(BATCH_SECOND)

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> Tensor:
        image = torch.empty_strided(ctx.shape, ctx.stride, dtype=gradient.dtype, device=gradient.device)
        at_left, at_upper = ctx.saved_tensors
        pool_gradient(gradient.permute(BATCH_LAST), at_left, at_upper, image.permute(BATCH_LAST))
        return image


_many_convolutions: Callable[..., Tensor] = _ManyConvolutions.apply
_many_pools: Callable[..., Tensor] = _ManyPools.apply


def _leading(value: Tensor | None, axis: int | None, size: int) -> Tensor | None:
    """The value with its client axis first; a value shared by all clients is repeated without a copy."""
    if value is None:
        return None
    return value.expand(size, *value.shape) if axis is None else value.movedim(axis, 0)


class _ForAllClients(torch.autograd.Function):
    """The rule by which vmap turns one client's layer, `alone`, into all clients', `many`, of the same tensors."""

    @staticmethod
    def forward(alone: Operation, many: Operation, *tensors: Tensor | None) -> Tensor:
        return alone(*tensors)

    @staticmethod
    def setup_context(ctx: Context, inputs: object, output: object) -> None:
        """Nothing to keep: gradients are those of the rule below."""

    @staticmethod
    def vmap(
        info: Context, in_dims: Sequence[int | None], alone: Operation, many: Operation, *tensors: Tensor | None
    ) -> tuple[Tensor, int]:
        stacked = (_leading(v, d, info.batch_size) for v, d in zip(tensors, in_dims[2:], strict=True))
        return many(*stacked), 0


class _ManyLinear(torch.autograd.Function):
    """`[K, B, I]` by `[K, O, I]`; the gradient of the weights comes as they lie, where PyTorch's would be turned."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        y = _in_parts(x, weight) if len(x) <= FEW else torch.bmm(x, weight.transpose(1, 2))
        return y if bias is None else y.add_(bias.unsqueeze(1))

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        return of_x, torch.bmm(gradient.transpose(1, 2), x), gradient.sum(1) if ctx.has_bias else None


def _in_parts(x: Tensor, weight: Tensor) -> Tensor:
    """The same for few clients: long sums are cut into parts, or a few of a GPU's processors do all the work."""
    parts = next(n for n in (16, 8, 4, 2, 1) if x.shape[2] % n == 0)
    cut = [(own.unflatten(1, (parts, -1)), w.unflatten(1, (parts, -1))) for own, w in zip(x, weight, strict=True)]
    return torch.stack([torch.bmm(own.transpose(0, 1), w.permute(1, 2, 0)).sum(0) for own, w in cut])


_many_linear: Callable[..., Tensor] = _ManyLinear.apply


_for_all_clients: Callable[..., Tensor] = _ForAllClients.apply


def _said(usual: Settings, given: Sequence[object], named: Mapping[str, object]) -> Settings:
    """All settings of a call: as its arguments say, else the usual ones."""
    return {**usual, **dict(zip(usual, given, strict=False)), **named}


def _pair(value: int | Sequence[int]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _padding(given: str | int | Sequence[int], kernel: Pair, stride: Pair) -> Pair | None:
    """The zeros on each side, or nothing where the two sides would differ."""
    if given == "valid":
        return (0, 0)
    if isinstance(given, str):  # "same"
        return (kernel[0] // 2, kernel[1] // 2) if stride == (1, 1) and kernel[0] % 2 and kernel[1] % 2 else None
    return _pair(given)


@cache
def _compiled(gpu: torch.device) -> ModuleType | None:
    """Kernels for a GPU, where Triton is there and can compile them."""
    try:
        from sordino.learning import gpu_kernels
    except ImportError:
        return None
    return gpu_kernels if gpu_kernels.works(gpu) else None


def _plain(*tensors: Tensor | None) -> bool:
    """Float32 as it is, which is what our own layers for GPUs compute."""
    given = [tensor for tensor in tensors if tensor is not None]
    return all(tensor.dtype == torch.float32 for tensor in given) and not torch.is_autocast_enabled("cuda")


class ClientKernels(TorchFunctionMode):
    """Inside it, and under `vmap`, batch norm, cross-entropy and (if `unfolded`) convolutions and pooling are ours.

    On a GPU dense layers are too, and, where Triton is there, group norm and other convolutions (gpu_kernels.py).
    """

    def __init__(self, unfolded: bool = True, gpu: torch.device | None = None) -> None:
        super().__init__()
        self._compiled = _compiled(gpu) if unfolded and gpu else None
        # By name: an object that holds its own methods outlives its last use.
        self._rules: dict[object, str] = {
            functional.batch_norm: "_batch_norm",
            functional.cross_entropy: "_cross_entropy",
        }
        if gpu:
            self._rules |= {functional.linear: "_dense", functional.group_norm: "_group_norm"}
        if unfolded:
            self._rules |= {
                torch.conv2d: "_convolution",
                functional.max_pool2d: "_pool",
                torch.max_pool2d: "_pool",
                torch.Tensor.view: "_view",
            }

    def __torch_function__(
        self, func: Callable[..., object], types: object, args: Sequence[object] = (), kwargs: Settings | None = None
    ) -> object:
        rule = self._rules.get(func)
        result = getattr(self, rule)(*args, **(kwargs or {})) if rule else None
        return func(*args, **(kwargs or {})) if result is None else result

    @staticmethod
    def _batch_norm(
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        *given: object,
        **named: object,
    ) -> Tensor | None:
        training, momentum, eps = _said(BATCH_NORM, given, named).values()
        if not training:
            return None
        over = [axis for axis in range(input.ndim) if axis != 1]
        mean = input.mean(over, keepdim=True)
        centred = input - mean
        variance = centred.square().mean(over, keepdim=True)
        if running_mean is not None and running_var is not None:
            count = input.numel() // input.shape[1]
            running_mean.mul_(1 - momentum).add_(mean.detach().flatten(), alpha=momentum)
            running_var.mul_(1 - momentum).add_(variance.detach().flatten(), alpha=momentum * count / (count - 1))
        result = centred * torch.rsqrt(variance + eps)
        channels = [1, -1] + [1] * (input.ndim - 2)
        if weight is not None:
            result = result * weight.reshape(channels)
        return result if bias is None else result + bias.reshape(channels)

    @staticmethod
    def _cross_entropy(input: Tensor, target: Tensor, *given: object, **named: object) -> Tensor | None:
        """The mean over records `[B, classes]` with labels `[B]`, all of which are known to be classes."""
        usual = _said(CROSS_ENTROPY, given, named) == CROSS_ENTROPY
        if not usual or input.ndim != 2 or target.dtype != torch.int64:
            return None
        picked = torch.log_softmax(input, 1).gather(1, target.unsqueeze(1)).squeeze(1)
        return picked.neg().sum() / len(picked)

    def _convolution(
        self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *given: object, **named: object
    ) -> Tensor | None:
        stride, padding, dilation, groups = _said(CONVOLUTION, given, named).values()
        kernel, stride = (weight.shape[2], weight.shape[3]), _pair(stride)
        sides = _padding(padding, kernel, stride)
        if input.ndim != 4 or groups != 1 or _pair(dilation) != (1, 1) or sides is None:
            return None
        compiled = self._compiled if stride == (1, 1) and _plain(input, weight, bias) else None
        if compiled and not compiled.convolves(input.shape, weight.shape, sides):
            compiled = None

        def many(*tensors: Tensor) -> Tensor:
            if compiled is None:
                return _many_convolutions(*tensors, Convolution(stride, sides))
            found: Tensor = compiled.GatheredConvolutions.apply(*tensors, sides)
            return found

        alone = partial(functional.conv2d, stride=stride, padding=sides)
        return _for_all_clients(alone, many, input, weight, bias)

    def _group_norm(
        self,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor | None:
        compiled = self._compiled
        if compiled is None or weight is None or bias is None or input.ndim != 4:
            return None
        if not compiled.normalises(input.shape[1], num_groups) or not _plain(input, weight, bias):
            return None

        def alone(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return functional.group_norm(x, num_groups, w, b, eps)

        def many(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            found: Tensor = compiled.GroupNorms.apply(x, num_groups, w, b, eps)
            return found

        return _for_all_clients(alone, many, input, weight, bias)

    @staticmethod
    def _dense(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        usual = input.ndim == weight.ndim == 2 and (bias is None or bias.ndim == 1) and _plain(input, weight, bias)
        return _for_all_clients(functional.linear, _many_linear, input, weight, bias) if usual else None

    @staticmethod
    def _pool(input: Tensor, kernel_size: int | Sequence[int], *given: object, **named: object) -> Tensor | None:
        stride, padding, dilation, *special = _said(POOL, given, named).values()
        window, step = _pair(kernel_size), _pair(stride or kernel_size)
        plain = _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and not any(special)
        if not plain or window != (2, 2) or step != (2, 2) or input.ndim != 4 or min(input.shape[-2:]) < 2:
            return None
        return _for_all_clients(partial(functional.max_pool2d, kernel_size=2), _many_pools, input)

    @staticmethod
    def _view(input: Tensor, *shape: Any, **named: object) -> Tensor | None:
        """Networks flatten by `view`, which needs the batch to be the slowest axis: `reshape` does not."""
        return None if named or isinstance(shape[0], torch.dtype) else input.reshape(*shape)


__all__ = ["ClientKernels"]
