"""Compiled kernels for the CPU, optional: the same functions work, more slowly, without them.

Every function has the contract of a stock operation or a short sequence of them, and takes the plain way where its
kernel does not apply: another device or dtype, autocast, a transform of `torch.func`, a second derivative, an export.
"""

from sepgconv.execution.native._banded import banded_product
from sepgconv.execution.native._circular import MIRRORED, POINTS, circular_product
from sepgconv.execution.native._depthwise import depthwise, followed
from sepgconv.execution.native._guard import ORDINARY, applies, in_transform
from sepgconv.execution.native._library import Status, status
from sepgconv.execution.native._norm import batch_norm, recipe
from sepgconv.execution.native._pool import max_pool
from sepgconv.execution.native._spectra import image_spectra, spectra_images

__all__ = [
    "MIRRORED",
    "ORDINARY",
    "POINTS",
    "Status",
    "applies",
    "banded_product",
    "batch_norm",
    "circular_product",
    "depthwise",
    "followed",
    "image_spectra",
    "in_transform",
    "max_pool",
    "recipe",
    "spectra_images",
    "status",
]
