"""The error in %, counted."""

import torch
from torch import Tensor
from torchmetrics import Metric


class ErrorRate(Metric):
    """Percentage of wrong predictions, counted in whole numbers and summed over processes."""

    full_state_update = False
    wrong: Tensor
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        for state in ("wrong", "total"):
            self.add_state(state, torch.tensor(0), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Counts a batch."""
        self.wrong += (logits.argmax(1) != labels).sum()
        self.total += labels.numel()

    def compute(self) -> Tensor:
        """100 · wrong / total."""
        return 100 * self.wrong.double() / self.total
