"""Checks that layers share: shapes that are wrong, and sizes with which equivariance cannot hold."""

import warnings

import torch
from torch import Tensor, nn

AXES = {1: "x", 2: "y, x", 3: "z, y, x"}


class EquivarianceWarning(UserWarning):
    """A layer's stride, padding and input size do not allow the network to be equivariant."""


def whole(name: str, value: object, least: int) -> int:
    """A whole number of at least `least`, or a ValueError that names it."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return value


def described(layer: nn.Module) -> str:
    """A layer in a message."""
    return f"{type(layer).__name__}({layer.extra_repr()})"


def floating(x: Tensor, layer: nn.Module) -> None:
    """Refuses integer and complex input."""
    if not x.is_floating_point():
        raise ValueError(f"{type(layer).__name__} takes real floating-point input, got {x.dtype}")


def symmetric_sampling(layer: nn.Module, sizes: tuple[int, ...], kernel: int, stride: int, padding: int) -> None:
    """Warns, once per layer, when the strided positions are not symmetric about the image's centre.

    A window of `kernel` taps at stride s visits positions that a turn or a dilation about the centre maps onto
    themselves only if s divides n + 2·padding − kernel; otherwise the far edge is cut off on one side.
    """
    if stride == 1 or getattr(layer, "_warned", False) or torch.compiler.is_compiling():
        return
    broken = [size for size in sizes if (size + 2 * padding - kernel) % stride]
    if not broken:
        return
    layer.__dict__["_warned"] = True
    size = broken[0]
    larger = next(n for n in range(size, size + stride + 1) if (n + 2 * padding - kernel) % stride == 0)
    smaller = larger - stride
    fits = f"{smaller} or {larger}" if smaller >= kernel - 2 * padding and smaller > 0 else f"{larger}"
    warnings.warn(
        f"{described(layer)} loses equivariance on an input of size {size}: stride {stride} "
        f"with a window of {kernel} and padding {padding} samples it off centre. Crop, pad or resize so that this "
        f"layer sees {fits} (or use stride 1).",
        EquivarianceWarning,
        stacklevel=3,
    )
