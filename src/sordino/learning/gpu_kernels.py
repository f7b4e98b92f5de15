"""Convolutions and group norm of many clients on a GPU, compiled by Triton, which comes with PyTorch for CUDA.

A GPU waits for its memory most of the time, so that what counts is how often an array is read or written. Unfolding
writes every pixel nine or twenty-five times before a product reads it back: here a product gathers the windows while it
multiplies. PyTorch's group norm under `vmap` goes over its arrays a dozen times: here two or three times. The fastest
axis of all arrays is the channels. Products are float32's: plain, or of factors that are each split into two TF32
numbers, which keep 22 of their 24 bits. Sums have a fixed order: the same step gives the same bits again.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

CHANNELS_LAST = (0, 1, 3, 4, 2)  #: [K, B, C, H, W] -> [K, B, H, W, C]
LIMIT = 2**31  #: values of one client that its kernels can count
WAVES = 264  #: programs that fill a large GPU twice: with fewer, a sum over pixels is cut into parts

Pair = tuple[int, int]
Context = Any  #: what PyTorch hands to an autograd function, which keeps there what it likes


@triton.jit
def _product(
    x, w, bias, y, height, width, out_height, out_width, positions, outputs, top, left,
    CHANNELS: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, BIAS: tl.constexpr, FLAT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y[k, m, o] = sum over taps and channels of x[k, window of m] w[k, tap, channel, o]; m is (b, row, column)."""
    client = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(outputs, COLUMNS)
    m = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    o = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    area = out_height * out_width
    image, place = m // area, m % area
    row = place // out_width - top
    column = place % out_width - left
    images = positions // area
    x += client * images * height * width * CHANNELS
    w += client * KERNEL_H * KERNEL_W * CHANNELS * outputs
    there = m < positions
    wanted = o < outputs
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    if FLAT:
        for first in range(0, KERNEL_H * KERNEL_W * CHANNELS, DEPTH):
            d = first + tl.arange(0, DEPTH)
            tap, channel = d // CHANNELS, d % CHANNELS
            i = row[:, None] + (tap // KERNEL_W)[None, :]
            j = column[:, None] + (tap % KERNEL_W)[None, :]
            deep = d < KERNEL_H * KERNEL_W * CHANNELS
            inside = (i >= 0) & (i < height) & (j >= 0) & (j < width) & there[:, None] & deep[None, :]
            a = tl.load(
                x + ((image[:, None] * height + i) * width + j) * CHANNELS + channel[None, :], mask=inside, other=0.0
            )
            b = tl.load(w + d[:, None] * outputs + o[None, :], mask=deep[:, None] & wanted[None, :], other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    else:
        parts: tl.constexpr = (CHANNELS + DEPTH - 1) // DEPTH
        for turn in range(KERNEL_H * KERNEL_W * parts):
            tap = turn // parts
            channel = (turn % parts) * DEPTH + tl.arange(0, DEPTH)
            i = row + tap // KERNEL_W
            j = column + tap % KERNEL_W
            inside = (i >= 0) & (i < height) & (j >= 0) & (j < width) & there
            deep = channel < CHANNELS
            a = tl.load(
                x + (((image * height + i) * width + j) * CHANNELS)[:, None] + channel[None, :],
                mask=inside[:, None] & deep[None, :], other=0.0,
            )  # fmt: skip
            b = tl.load(
                w + (tap * CHANNELS + channel)[:, None] * outputs + o[None, :],
                mask=deep[:, None] & wanted[None, :], other=0.0,
            )  # fmt: skip
            total = tl.dot(a, b, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + client * outputs + o, mask=wanted, other=0.0)[None, :]
    y += client * positions * outputs
    tl.store(y + m[:, None] * outputs + o[None, :], total, mask=there[:, None] & wanted[None, :])


@triton.jit
def _weights(
    x, g, w, height, width, out_height, out_width, positions, outputs, top, left, turns,
    CHANNELS: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """w[part, k, (tap, channel), o] = sum over a part's positions m of x[k, window of m] g[k, m, o]."""
    client = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    across = tl.cdiv(outputs, COLUMNS)
    d = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    o = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    tap, channel = d // CHANNELS, d % CHANNELS
    area = out_height * out_width
    images = positions // area
    x += client * images * height * width * CHANNELS
    g += client * positions * outputs
    deep = d < KERNEL_H * KERNEL_W * CHANNELS
    wanted = o < outputs
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for turn in range(turns):
        m = (part * turns + turn) * DEPTH + tl.arange(0, DEPTH)
        there = m < positions
        image, place = m // area, m % area
        i = (place // out_width - top)[:, None] + (tap // KERNEL_W)[None, :]
        j = (place % out_width - left)[:, None] + (tap % KERNEL_W)[None, :]
        inside = (i >= 0) & (i < height) & (j >= 0) & (j < width) & there[:, None] & deep[None, :]
        a = tl.load(
            x + ((image[:, None] * height + i) * width + j) * CHANNELS + channel[None, :], mask=inside, other=0.0
        )
        b = tl.load(g + m[:, None] * outputs + o[None, :], mask=there[:, None] & wanted[None, :], other=0.0)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    clients = tl.num_programs(1)
    depth = KERNEL_H * KERNEL_W * CHANNELS
    w += (part * clients + client) * depth * outputs
    tl.store(w + d[:, None] * outputs + o[None, :], total, mask=deep[:, None] & wanted[None, :])


SPLIT, PLAIN = "tf32x3", "ieee"  #: which of the two is faster was measured


def _empty(like: Tensor, clients: int, images: int, channels: int, height: int, width: int) -> Tensor:
    """`[K, B, C, H, W]` whose fastest axis is the channels: no view, which could not be changed in place."""
    shape = (clients, images, channels, height, width)
    strides = (images * height * width * channels, height * width * channels, 1, width * channels, channels)
    return torch.empty_strided(shape, strides, dtype=like.dtype, device=like.device)


def _power(value: int, least: int, most: int) -> int:
    return max(least, min(most, 1 << (value - 1).bit_length()))


def _convolved(x: Tensor, w: Tensor, bias: Tensor | None, kernel: Pair, padding: Pair) -> Tensor:
    """`x [K, B, H, W, C]` by `w [K, kh * kw * C, O]`, both contiguous, to `[K, B, O, oh, ow]`."""
    clients, images, height, width, channels = x.shape
    outputs = w.shape[2]
    tall = height + 2 * padding[0] - kernel[0] + 1
    wide = width + 2 * padding[1] - kernel[1] + 1
    y = _empty(x, clients, images, outputs, tall, wide)
    positions = images * tall * wide
    flat = channels < 16
    rows, columns = _power(positions, 16, 128), _power(outputs, 16, 64)
    depth = _power(channels * kernel[0] * kernel[1] if flat else channels, 16, 32)
    grid = (triton.cdiv(positions, rows) * triton.cdiv(outputs, columns), clients)
    _product[grid](
        x, w, bias if bias is not None else x, y, height, width, tall, wide, positions, outputs, *padding,
        channels, *kernel, bias is not None, flat, rows, columns, depth, SPLIT,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return y


def _weight_gradient(x: Tensor, g: Tensor, kernel: Pair, padding: Pair) -> Tensor:
    """`[K, kh * kw * C, O]` from `x [K, B, H, W, C]` and the gradient `g [K, B, oh, ow, O]`, both contiguous."""
    clients, images, height, width, channels = x.shape
    tall, wide, outputs = g.shape[2:]
    positions, depth_of = images * tall * wide, kernel[0] * kernel[1] * channels
    rows, columns, depth = _power(depth_of, 16, 64), _power(outputs, 16, 64), 32
    tiles = triton.cdiv(depth_of, rows) * triton.cdiv(outputs, columns)
    parts = max(1, min(WAVES // (tiles * clients), positions // (8 * depth)))
    turns = triton.cdiv(positions, parts * depth)
    parts = triton.cdiv(positions, turns * depth)
    w = x.new_empty(parts, clients, depth_of, outputs)
    _weights[(tiles, clients, parts)](
        x, g, w, height, width, tall, wide, positions, outputs, *padding, turns,
        channels, *kernel, rows, columns, depth, PLAIN,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return w[0] if parts == 1 else w.sum(0)


class GatheredConvolutions(torch.autograd.Function):
    """`[K, B, C, H, W]` by `[K, O, C, kh, kw]`, in steps of one pixel."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair) -> Tensor:
        kernel = (weight.shape[3], weight.shape[4])
        last = x.permute(CHANNELS_LAST).contiguous()
        taps = weight.permute(0, 3, 4, 2, 1).flatten(1, 3).contiguous()
        ctx.save_for_backward(last, weight)
        ctx.geometry, ctx.has_bias = (kernel, padding), bias is not None
        return _convolved(last, taps, None if bias is None else bias.contiguous(), kernel, padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (last, weight), (kernel, padding) = ctx.saved_tensors, ctx.geometry
        g = gradient.permute(CHANNELS_LAST).contiguous()
        clients, outputs, channels = weight.shape[:3]
        of_x = of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = _weight_gradient(last, g, kernel, padding)
            of_weight = of_weight.view(clients, *kernel, channels, outputs).permute(0, 4, 3, 1, 2)
        if ctx.needs_input_grad[0]:
            turned = weight.flip(3, 4).permute(0, 3, 4, 1, 2).flatten(1, 3).contiguous()
            around = (kernel[0] - 1 - padding[0], kernel[1] - 1 - padding[1])
            of_x = _convolved(g, turned, None, kernel, around)
        return of_x, of_weight, g.sum((1, 2, 3)) if ctx.has_bias else None, None


@triton.jit
def _by_group(of_channels, GROUPS: tl.constexpr, EACH: tl.constexpr):
    """The sums over each group's channels."""
    return tl.sum(tl.reshape(of_channels, (GROUPS, EACH)), 1)


@triton.jit
def _by_channel(of_groups, GROUPS: tl.constexpr, EACH: tl.constexpr):
    """Each group's value for all of its channels."""
    return tl.reshape(tl.broadcast_to(of_groups[:, None], (GROUPS, EACH)), (GROUPS * EACH,))


@triton.jit
def _normalise(
    x, weight, bias, y, mean, scale, images, eps,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One image `[pixels, channels]`: y = (x - mean) scale weight + bias, with a mean and a scale for each group."""
    image = tl.program_id(0).to(tl.int64)
    client = image // images
    each: tl.constexpr = CHANNELS // GROUPS
    number: tl.constexpr = PIXELS * each
    channel = tl.arange(0, CHANNELS)
    x += image * PIXELS * CHANNELS
    y += image * PIXELS * CHANNELS
    sums = tl.zeros((CHANNELS,), dtype=tl.float32)
    for first in range((PIXELS + ROWS - 1) // ROWS):
        p = first * ROWS + tl.arange(0, ROWS)
        at = p[:, None] * CHANNELS + channel[None, :]
        sums += tl.sum(tl.load(x + at, mask=(p < PIXELS)[:, None], other=0.0), 0)
    middle = _by_group(sums, GROUPS, each) / number
    spread = _by_channel(middle, GROUPS, each)
    squares = tl.zeros((CHANNELS,), dtype=tl.float32)
    for first in range((PIXELS + ROWS - 1) // ROWS):
        p = first * ROWS + tl.arange(0, ROWS)
        at = p[:, None] * CHANNELS + channel[None, :]
        off = tl.load(x + at, mask=(p < PIXELS)[:, None], other=0.0) - spread[None, :]
        squares += tl.sum(tl.where((p < PIXELS)[:, None], off * off, 0.0), 0)
    inverse = 1 / tl.sqrt(_by_group(squares, GROUPS, each) / number + eps)
    group = tl.arange(0, GROUPS)
    tl.store(mean + image * GROUPS + group, middle)
    tl.store(scale + image * GROUPS + group, inverse)
    times = _by_channel(inverse, GROUPS, each)
    times *= tl.load(weight + client * CHANNELS + channel)
    plus = tl.load(bias + client * CHANNELS + channel)
    for first in range((PIXELS + ROWS - 1) // ROWS):
        p = first * ROWS + tl.arange(0, ROWS)
        at = p[:, None] * CHANNELS + channel[None, :]
        there = (p < PIXELS)[:, None]
        off = tl.load(x + at, mask=there, other=0.0) - spread[None, :]
        tl.store(y + at, off * times[None, :] + plus[None, :], mask=there)


@triton.jit
def _normalise_back(
    x, g, weight, mean, scale, of_x, of_weight, of_bias, images,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradients of one image, and its share of those of weight and bias."""
    image = tl.program_id(0).to(tl.int64)
    client = image // images
    each: tl.constexpr = CHANNELS // GROUPS
    number: tl.constexpr = PIXELS * each
    channel = tl.arange(0, CHANNELS)
    group = tl.arange(0, GROUPS)
    x += image * PIXELS * CHANNELS
    g += image * PIXELS * CHANNELS
    of_x += image * PIXELS * CHANNELS
    middle = tl.load(mean + image * GROUPS + group)
    inverse = tl.load(scale + image * GROUPS + group)
    spread = _by_channel(middle, GROUPS, each)
    times = _by_channel(inverse, GROUPS, each)
    own = tl.load(weight + client * CHANNELS + channel)
    plain = tl.zeros((CHANNELS,), dtype=tl.float32)
    turned = tl.zeros((CHANNELS,), dtype=tl.float32)
    for first in range((PIXELS + ROWS - 1) // ROWS):
        p = first * ROWS + tl.arange(0, ROWS)
        at = p[:, None] * CHANNELS + channel[None, :]
        there = (p < PIXELS)[:, None]
        back = tl.load(g + at, mask=there, other=0.0)
        off = (tl.load(x + at, mask=there, other=0.0) - spread[None, :]) * times[None, :]
        plain += tl.sum(back, 0)
        turned += tl.sum(back * off, 0)
    tl.store(of_bias + image * CHANNELS + channel, plain)
    tl.store(of_weight + image * CHANNELS + channel, turned)
    shift = _by_group(plain * own, GROUPS, each) / number
    slope = _by_group(turned * own, GROUPS, each) / number
    shifts = _by_channel(shift, GROUPS, each)
    slopes = _by_channel(slope, GROUPS, each)
    for first in range((PIXELS + ROWS - 1) // ROWS):
        p = first * ROWS + tl.arange(0, ROWS)
        at = p[:, None] * CHANNELS + channel[None, :]
        there = (p < PIXELS)[:, None]
        back = tl.load(g + at, mask=there, other=0.0) * own[None, :]
        off = (tl.load(x + at, mask=there, other=0.0) - spread[None, :]) * times[None, :]
        tl.store(of_x + at, (back - shifts[None, :] - off * slopes[None, :]) * times[None, :], mask=there)


class GroupNorms(torch.autograd.Function):
    """Group norm of `[K, B, C, H, W]` with `[K, C]` weights and biases, where C and the groups are powers of two."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        last = x.permute(CHANNELS_LAST).contiguous()
        own = weight.contiguous()
        clients, images, tall, wide, channels = last.shape
        y = _empty(last, clients, images, channels, tall, wide)
        mean, scale = (last.new_empty(clients * images, groups) for _ in range(2))
        rows = _rows(tall * wide, channels)
        _normalise[(clients * images,)](
            last, own, bias.contiguous(), y, mean, scale, images, eps,
            tall * wide, channels, groups, rows, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(last, own, mean, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        last, own, mean, scale = ctx.saved_tensors
        g = gradient.permute(CHANNELS_LAST).contiguous()
        clients, images, tall, wide, channels = last.shape
        of_x = _empty(last, clients, images, channels, tall, wide)
        of_weight, of_bias = (last.new_empty(clients, images, channels) for _ in range(2))
        _normalise_back[(clients * images,)](
            last, g, own, mean, scale, of_x, of_weight, of_bias, images,
            tall * wide, channels, mean.shape[1], _rows(tall * wide, channels), num_warps=4,
        )  # fmt: skip
        return of_x, None, of_weight.sum(1), of_bias.sum(1), None


def _rows(pixels: int, channels: int) -> int:
    """Pixels at a time: some four thousand values."""
    return _power(pixels, 1, max(1, 4096 // channels))


def convolves(x: torch.Size, weight: torch.Size, padding: Pair) -> bool:
    """Whether `GatheredConvolutions` can do it with one client's images `[B, C, H, W]` and weights `[O, C, kh, kw]`."""
    tall, wide = x[2] + 2 * padding[0] - weight[2] + 1, x[3] + 2 * padding[1] - weight[3] + 1
    return max(x.numel(), x[0] * weight[0] * tall * wide) < LIMIT


def works(device: torch.device) -> bool:
    """Whether kernels can be compiled and started there: Triton wants a C compiler, and not every GPU can do all."""
    try:
        image = torch.ones(2, 1, 1, 3, 3, device=device)
        found = GatheredConvolutions.apply(image, torch.ones(2, 1, 1, 3, 3, device=device), None, (0, 0))
        return bool((found == 9).all())
    except Exception:  # whatever it is that Triton, the compiler or the driver is missing
        return False


def normalises(channels: int, groups: int) -> bool:
    """Whether `GroupNorms` can do it."""
    return all(n & (n - 1) == 0 for n in (channels, groups)) and 2 <= channels <= 1024


__all__ = ["GatheredConvolutions", "GroupNorms", "convolves", "normalises", "works"]
