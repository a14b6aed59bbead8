"""Batch norm of rows with stock operations whose sums are exact.

On a CPU torch's own norm sums rows one after the other in float32, which for 400,000 of them is off by 1e-3; its sums
and means of tensors are exact.
"""

import torch
from torch import Tensor

from sepgconv.execution.native._guard import in_transform


def plain_norm(
    flat: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    fixed: tuple[Tensor | None, Tensor | None] | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows `(rows, channels)`, normalised by a fixed mean and variance or their own, and that mean and variance."""
    wide = flat.to(torch.promote_types(flat.dtype, torch.float32))
    if fixed is None and wide is flat and flat.requires_grad and torch.is_grad_enabled() and not in_transform():
        with torch.no_grad():
            rough = flat.mean(0)
            centred = flat - rough
            rest = centred.mean(0)
            variance = centred.square_().mean(0) - rest.square()
            scale = (variance + eps).rsqrt()
        return _FewPasses.apply(flat, weight, bias, rough, rest, scale, eps), rough + rest, variance
    if fixed is None:
        rough = wide.detach().mean(0)
        centred = wide - rough
        rest = centred.mean(0)  # what rounding has left of the mean
        mean, variance = rough + rest, centred.square().mean(0) - rest.square()
        centred = centred - rest
    else:
        mean, variance = fixed
        assert mean is not None
        assert variance is not None
        centred = wide - mean
    scale = (variance.to(wide) + eps).rsqrt()
    scaled = centred * (scale if weight is None else scale * weight)
    return (scaled if bias is None else scaled + bias).to(flat.dtype), mean, variance


class _FewPasses(torch.autograd.Function):
    """Batch norm by the mean, in two parts, and one over the deviation; autograd would take three times the passes."""

    @staticmethod
    def forward(
        ctx,
        flat: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        rest: Tensor,
        scale: Tensor,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(flat, weight, bias, mean, rest, scale)
        ctx.eps = eps
        result = (flat - mean).sub_(rest).mul_(scale if weight is None else scale * weight)
        return result if bias is None else result.add_(bias)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (flat, weight, bias, mean, rest, scale), grad = ctx.saved_tensors, grads[0]
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # a second derivative
            centred = flat - flat.mean(0)
            again = centred * (centred.square().mean(0) + ctx.eps).rsqrt()
            again = again if weight is None else again * weight
            again = again if bias is None else again + bias
            inputs = [t for t, need in zip((flat, weight, bias), needed, strict=True) if need and t is not None]
            found = iter(torch.autograd.grad(again, inputs, grad, create_graph=True))
            dx, dw, db = (next(found) if need else None for need in needed)
            return dx, dw, db, *[None] * 4
        normal = (flat - mean).sub_(rest).mul_(scale)
        dw, db = (normal * grad).sum(0), grad.sum(0)
        dx = normal.mul_(dw / -len(flat)).add_(grad).sub_(db / len(flat))
        dx = dx.mul_(scale if weight is None else scale * weight)
        dx, dw, db = (t if need else None for t, need in zip((dx, dw, db), needed, strict=True))
        return dx, dw, db, *[None] * 4
