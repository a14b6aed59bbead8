"""Randomness as a function of position: nothing random has to be saved to resume a run exactly."""

import numpy as np
import torch


def derive(seed: int, *position: int) -> int:
    """A 64-bit seed for one position of a run, e.g. `derive(seed, epoch, batch)`; the same on every machine."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
    # A spawn key, unlike entropy, is not padded with zeros: (1,) and (1, 0) are different positions.
    return int(np.random.SeedSequence(seed, spawn_key=position).generate_state(1, np.uint64)[0])


def generator(seed: int, *position: int) -> torch.Generator:
    """A CPU generator for one position of a run."""
    return torch.Generator().manual_seed(derive(seed, *position))
