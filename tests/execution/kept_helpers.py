"""A small network in eval, and what it computes without anything that was kept."""

import torch
from torch import nn

import sepgconv as sg

KERNEL = sg.KernelConfig(hidden=8, layers=1)


def net(**options) -> nn.Sequential:
    grid = sg.se2(4)
    return nn.Sequential(
        sg.LiftingConv(1, 2, 3, grid=grid, kernel=KERNEL, **options),
        sg.ResidualBlock(2, 3, 3, grid=grid, kernel=KERNEL),
        sg.GroupPool("max"),
    ).eval()


def fresh(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """With gradients nothing is kept."""
    with torch.enable_grad():
        return model(x).detach()
