"""A loader over tensors in memory: whole batches are cut out at once, and any position can be resumed."""

from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor

from sepgconv.data import Split
from sepgconv.data.folders import StoredSplit

from .module import PADDING
from .seeding import generator

Prepare = Callable[[Tensor, Generator | None], Tensor]


class Order:
    """The order of the images in an epoch: as they are, or shuffled from `(seed, epoch)`."""

    def __init__(self, size: int, seed: int | None) -> None:
        self.size, self.seed, self.epoch = size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning at the start of every epoch."""
        self.epoch = epoch

    def indices(self) -> Tensor:
        """All indices, in the order of this epoch."""
        if self.seed is None:
            return torch.arange(self.size)
        return torch.randperm(self.size, generator=generator(self.seed, self.epoch))


class Batches:
    """Iterates over a split in batches.

    With a seed, for training: shuffled, and a last batch that is not full is dropped. Without, for evaluation: in
    order, and every image once. Each of several processes takes its share of every batch; where an evaluation batch
    does not divide evenly, shares are filled up with images labelled `PADDING`, which are not to be counted.

    Args:
        split: images and labels.
        batch_size: images in a batch, over all processes.
        prepare: from uint8 images and a generator (None in evaluation) to the network's input.
        seed: of the order and of what `prepare` draws.
        rank: number of this process.
        world: number of processes.

    Shapes:
        images `(b, c, y, x)`, labels `(b,)`
    """

    batch_sampler = None  # Lightning asks every loader that has a sampler

    def __init__(
        self,
        split: Split | StoredSplit,
        batch_size: int,
        prepare: Prepare,
        *,
        seed: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if batch_size < 1 or (seed is not None and batch_size > len(split)):
            raise ValueError(f"batch_size must lie between 1 and the {len(split)} images there are, got {batch_size}")
        if seed is not None and batch_size % world:
            raise ValueError(f"batch_size must be a multiple of the {world} processes that share it, got {batch_size}")
        self.split, self.batch_size, self.prepare = split, batch_size, prepare
        self.seed, self.rank, self.world = seed, rank, world
        self.sampler = Order(len(split), seed)  # Lightning looks for it by this name
        self._done, self._resume = 0, (-1, 0)

    def __len__(self) -> int:
        return len(self.split) // self.batch_size if self.seed is not None else -(-len(self.split) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        # A generator runs at its first `next`, when Lightning has told the sampler the epoch.
        epoch, start = self._resume
        indices = self.sampler.indices()
        for batch in range(start if epoch == self.sampler.epoch else 0, len(self)):
            self._done = batch + 1
            yield self._batch(indices[batch * self.batch_size : (batch + 1) * self.batch_size], batch)

    def state_dict(self) -> dict[str, int]:
        """The position within the epoch, for a checkpoint."""
        return {"epoch": self.sampler.epoch, "done": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Starts the epoch of the state after the batches that are done; other epochs start at the beginning."""
        self._resume = (state.get("epoch", -1), state.get("done", 0))

    def _batch(self, indices: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        share = -(-len(indices) // self.world)
        mine = indices[self.rank * share : (self.rank + 1) * share]
        images, labels = self.split.pixels(mine), self.split.labels[mine]
        if missing := share - len(mine):
            images = torch.cat([images, self.split.pixels(slice(0, 1)).expand(missing, -1, -1, -1)])
            labels = torch.cat([labels, labels.new_full((missing,), PADDING)])
        random = None if self.seed is None else generator(self.seed, self.sampler.epoch, batch, self.rank)
        return self.prepare(images, random), labels
