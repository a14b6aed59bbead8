"""Small data sets for groups of other dimensions, made here: digits as volumes, and kinds of signals in noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from .dataset import Split
from .embedded import read as read_digits

VOLUME, THICK = 16, 6
"""Voxels along each edge, and how thick a digit is."""
LENGTH, SIZES = 128, (3_000, 600, 1_200)
KINDS = ("rising chirp", "falling chirp", "decaying pulse", "growing pulse", "lone pulse", "pair of pulses")
LARGEST = 2.0
"""By how much the test signals are stretched at most."""


def read_volumes(root: object = None, seed: int = 0, download: bool = False) -> tuple[Split, Split, Split]:
    """The embedded digits at half their size, extruded to volumes of 16³; the arguments make no difference."""
    train, valid, test = (Split(extruded(split.images), split.labels) for split in read_digits())
    return train, valid, test


def extruded(images: Tensor) -> Tensor:
    """Digits `(n, c, 28, 28)` as bodies in the middle of volumes `(n, c, 16, 16, 16)`."""
    small = F.pad(F.avg_pool2d(images.float(), 2).round().byte(), (1, 1, 1, 1))
    volumes = small.new_zeros(*small.shape[:2], VOLUME, VOLUME, VOLUME)
    start = (VOLUME - THICK) // 2
    volumes[:, :, start : start + THICK] = small[:, :, None]
    return volumes


def read_signals(root: object = None, seed: int = 0, download: bool = False) -> tuple[Split, Split, Split]:
    """Signals of six kinds in noise: train and valid at one time scale, test stretched by up to 2."""
    parts = zip(SIZES, (1.0, 1.0, LARGEST), strict=True)
    train, valid, test = (signals(count, largest, 3 * seed + n) for n, (count, largest) in enumerate(parts))
    return train, valid, test


def signals(count: int, largest: float, seed: int) -> Split:
    """So many signals `(n, 1, x)`, each stretched by a factor between 1 and `largest`, kinds by turns.

    The function itself is stretched, not its samples: noise, position and strength do not depend on the factor.
    """
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % len(KINDS)
    draws = torch.rand(3, count, 1, generator=random, dtype=torch.float64)
    factor, centre, strength = largest ** draws[0], LENGTH / 2 + 16 * (draws[1] - 0.5), 0.7 + 0.6 * draws[2]
    t = (torch.arange(LENGTH, dtype=torch.float64) - centre) / factor
    bump, phase = torch.exp(-((t / 12) ** 2)), 2 * math.pi * 0.09 * t
    sweep = 2 * math.pi * 0.0016 * t**2
    fading = torch.sigmoid(2 * t) * torch.exp(-t.clamp_min(0) / 8)
    growing = torch.sigmoid(-2 * t) * torch.exp(t.clamp_max(0) / 8)
    lone, pair = torch.exp(-((t / 5) ** 2)), torch.exp(-(((t.abs() - 7) / 3) ** 2))
    shapes = torch.stack([bump * (phase + sweep).sin(), bump * (phase - sweep).sin(), fading, growing, lone, pair])
    values = shapes[labels, torch.arange(count)] * strength
    noise = 0.1 * torch.randn(count, LENGTH, generator=random, dtype=torch.float64)
    pixels = (127.5 + 80 * (values + noise)).round().clamp(0, 255).byte()
    return Split(pixels[:, None], labels)
