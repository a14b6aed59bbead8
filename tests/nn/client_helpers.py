"""A block, features and models that tests of clients share."""

import torch
from torch import Tensor, nn

import sepgconv as sg

KERNEL = sg.KernelConfig(hidden=8, layers=1)


def block(**options) -> sg.ResidualBlock:
    torch.manual_seed(0)
    module = sg.ResidualBlock(2, 3, 3, grid=sg.se2(4, sampling="fixed"), kernel=KERNEL, **options)
    for norm in (module.norm1, module.norm2):
        nn.init.uniform_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    return module


def features(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(3, 2, 4, 6, 6, dtype=dtype)


def model(name: str = "resnet", grid: sg.Grid | None = None, **options) -> nn.Module:
    settings = {"in_channels": 1, "width": 0.1, "kernel": KERNEL, "dropout": 0.0, **options}
    return sg.models.create(name, grid or sg.se2(4), **settings)
