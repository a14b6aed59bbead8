"""Where the first NaN or infinity of a training step comes from."""

from collections.abc import Iterable

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn


class NonFiniteError(ArithmeticError):
    """Training produced a NaN or an infinity; the message says at which step and in which layer."""


def advice(trainer: Trainer) -> str:
    """What is left of the run, and what may help."""
    saved = getattr(trainer.checkpoint_callback, "saved", None)
    kept = "There is no checkpoint yet" if saved is None else f"The checkpoint of step {saved} is kept"
    if trainer.global_step == 0:  # no rate has had any effect
        return f"{kept}; look at the images and at the weights that the run begins with"
    return f"{kept}; a lower optimiser.lr often helps"


def finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all numbers are finite, with a single read from the device."""
    real = [tensor.detach() for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    return not real or bool(torch.stack([t.sum(dtype=torch.float64) for t in real]).isfinite().all())


@torch.no_grad()
def first_bad_output(network: nn.Module, images: Tensor) -> str:
    """Runs the network once more, and says which module's output is the first that is not finite."""
    if not images.isfinite().all():
        return "the input images"
    found: list[str] = []

    def look(name: str, module: nn.Module):
        def hook(_module: nn.Module, _args: object, output: object) -> None:
            if not found and isinstance(output, Tensor) and not output.isfinite().all():
                found.append(f"the output of layer {name!r} ({type(module).__name__})")

        return module.register_forward_hook(hook)

    hooks = [look(name, module) for name, module in network.named_modules() if name]
    try:
        network.forward(images)  # not the call: that may be compiled, which bypasses the hooks
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else "the loss"


def first_bad_gradient(network: nn.Module) -> str | None:
    """The parameter nearest to the output whose gradient is not finite: in a backward pass, the first."""
    for name, parameter in reversed(list(network.named_parameters())):
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"the gradient of {name!r}"
    return None
