"""Steps of networks on a device that is not here, in a process of its own: a private backend can be named only once.

Tensors are fake ones, which have a device and a shape and no numbers. Prints a JSON of what went wrong.
"""

import json
import sys
import types
from collections.abc import Callable

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import sepgconv as sg

NAME = "elsewhere"


def register() -> None:
    """Names the device, with as much of a module as torch asks for."""
    module = types.ModuleType(NAME)
    answers = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "_is_in_bad_fork": False,
        "manual_seed_all": None,
        "is_autocast_enabled": False,
        "get_autocast_dtype": torch.float16,
        "get_amp_supported_dtype": [torch.float16, torch.bfloat16],
        "get_rng_state": None,
        "set_rng_state": None,
    }
    for name, answer in answers.items():
        setattr(module, name, lambda *_, answer=answer: answer)
    _setup_privateuseone_for_python_backend(NAME, module)


class Watch(TorchDispatchMode):
    """Notes copies between devices, and every time that the host asks for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        devices = {t.device.type for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)}
        name = str(func)
        if name.startswith(("aten._to_copy", "aten.copy_")) and len(devices) > 1:
            self.found.append(f"{name} between {sorted(devices)}")
        if "_local_scalar_dense" in name or "nonzero" in name or "is_nonzero" in name:
            self.found.append(f"{name} waits for the device")
        if devices == {"cpu"}:
            self.found.append(f"{name} on the CPU")
        return result


def step(model: nn.Module, x: torch.Tensor, optimiser: torch.optim.Optimizer) -> Callable[[], None]:
    def run() -> None:
        optimiser.zero_grad()
        model(x).square().mean().backward()
        optimiser.step()

    return run


def watch(run: Callable[[], None]) -> list[str]:
    run()  # builds what is built once
    with Watch() as seen:
        run()
    return seen.found


KERNEL = sg.KernelConfig(hidden=8, layers=1)
SMALL = {"in_channels": 1, "width": 0.1, "kernel": KERNEL}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet se2": lambda: sg.models.resnet(sg.se2(8), **SMALL),
    "resnet sim2": lambda: sg.models.resnet(sg.sim2(4, 3), factorisation="h_separable", **SMALL),
    "resnet scale2, random": lambda: sg.models.resnet(sg.scale2(3, sampling="random"), **SMALL),
    "resnet computed again": lambda: sg.models.resnet(sg.se2(4), recompute=True, **SMALL),
    "resnet dense": lambda: sg.models.resnet(sg.se2(4), factorisation="nonseparable", **SMALL),
    "allcnnc": lambda: sg.models.allcnnc(sg.se2(4), **SMALL),
    "two grids": lambda: nn.Sequential(
        sg.LiftingConv(1, 2, 3, grid=(a := sg.se2(4))),
        sg.ResidualBlock(2, 3, 3, grid=a, out_grid=(b := sg.se2(8)), kernel=KERNEL),
        sg.GroupConv(3, 2, 3, grid=b, factorisation="dgseparable"),
        sg.GroupPool("mean"),
    ),
}


AGAIN = ("resnet se2", "resnet sim2")
"""These are tried at another resolution, too."""


def move(model: nn.Module) -> None:
    """Puts fake tensors of that device in the place of all of a model's."""
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is not None:
                module._parameters[name] = nn.Parameter(torch.empty(old.shape, device=NAME))
        for name, old in module._buffers.items():
            if old is not None:
                module._buffers[name] = torch.empty(old.shape, dtype=old.dtype, device=NAME)


def main() -> int:
    """Every model in training and in eval, as it is made and at another resolution."""
    register()
    problems: dict[str, list[str]] = {}
    for name, make in MODELS.items():
        for other in (False, True) if name in AGAIN else (False,):
            model, label = make(), f"{name}{' at another resolution' * other}"
            if other:
                grid = next(module for module in model.modules() if isinstance(module, sg.Grid))
                sg.set_resolution(model, **{grid.axes[0].keyword: 6})
            with FakeTensorMode(allow_non_fake_inputs=True):
                move(model)
                x = torch.empty(2, 1, 28, 28, device=NAME)
                optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
                problems[f"{label}: training"] = watch(step(model, x, optimiser))
                model.eval()

                def infer(model: nn.Module = model, x: torch.Tensor = x) -> None:
                    with torch.no_grad():
                        model(x)

                problems[f"{label}: inference"] = watch(infer)
                plans = [module.plan for module in model.modules() if isinstance(module, sg.GroupConv)]
                problems[f"{label}: plans"] = [str(plan) for plan in plans if "Fourier" in str(plan)]
    with FakeTensorMode():
        problems["control"] = watch(lambda: torch.ones(1).to(NAME))  # what must be found
    print(json.dumps(problems))
    return 0


if __name__ == "__main__":
    sys.exit(main())
