"""Convolutions with a stride that keeps what lies between the pixels."""

from torch import nn

from sepgconv.nn._check import described, whole
from sepgconv.nn._conv import GroupConv, LiftingConv
from sepgconv.nn._pool import SpatialPool


def strided(conv: LiftingConv | GroupConv, size: int, stride: int = 2) -> nn.Sequential:
    """A convolution that is low-passed before it is subsampled, made for images of one size.

    `GroupConv(…, stride=2)` takes every second pixel of its result as it is: what is finer than the coarser pixels
    hold comes out as something else, and even sizes lose quarter turns. Here the filter of
    `SpatialPool(antialias=True)` comes before: with an even number of taps where the convolution leaves an even number
    of pixels, and an odd one where that is odd, so quarter turns are exact. Sizes that do not fit warn, once.

    Args:
        conv: a convolution at stride 1.
        size: height of the images, or of the features, that it will see.
        stride: distance between the pixels that are kept.

    Returns:
        The convolution and its pool, one after the other, as `fold` and `export` take them.

    Raises:
        ValueError: no filter samples that many pixels symmetrically at this stride; those that do are named.
    """
    if not isinstance(conv, LiftingConv | GroupConv):
        raise ValueError(f"conv must be a LiftingConv or a GroupConv, got {type(conv).__name__}")
    if conv.stride != 1:
        raise ValueError(f"conv must have stride 1, since the filter comes before the stride; got {described(conv)}")
    left = whole("size", size, 1) + 2 * conv.padding - conv.kernel_size + 1
    if left < 1:
        raise ValueError(f"size must be at least {size - left + 1} for {described(conv)}, got {size}")
    return nn.Sequential(conv, SpatialPool.fitting("mean", left, stride))
