"""Large convolutions in pieces of a batch, so that what lies in between is only ever there for one piece."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor


def in_pieces(
    run: Callable[..., Tensor],
    pieces: int,
    x: Tensor,
    weights: tuple[Tensor, ...],
    bias: Tensor | None = None,
    *,
    own: bool = False,
) -> Tensor:
    """`run(x, *weights, bias=bias)` for some images at a time, keeping nothing but x: backward runs each piece again.

    With `own`, the gradient that comes back belongs to this operation alone: x's gradient is written over it, if it has
    its shape.
    """
    ends = [len(x) * piece // pieces for piece in range(pieces + 1)]
    return _Pieces.apply(run, [slice(*pair) for pair in pairwise(ends)], own, x, bias, *weights)


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, run: Callable[..., Tensor], parts: list[slice], own: bool, x: Tensor, bias: Tensor | None, *weights: Tensor
    ) -> Tensor:
        ctx.run, ctx.parts, ctx.own = run, parts, own
        ctx.save_for_backward(x, bias, *weights)
        result: Tensor | None = None
        for span in parts:
            piece = run(x[span], *weights, bias=bias)
            result = piece.new_empty(len(x), *piece.shape[1:]) if result is None else result
            result[span] = piece
        assert result is not None
        return result

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, grad, needed = ctx.saved_tensors, grads[0], ctx.needs_input_grad[3:]

        def gradients(x: Tensor, slope: Tensor, **options: bool) -> list[Tensor]:
            """Of one piece, for everything that needs one."""
            leaves = [x, *saved[1:]]
            if not options.get("create_graph"):
                leaves = [
                    None if t is None else t.detach().requires_grad_(n) for t, n in zip(leaves, needed, strict=True)
                ]
            first, bias, *weights = leaves
            with torch.enable_grad():
                piece = ctx.run(first, *weights, bias=bias)
            wanted = [leaf for leaf, need in zip(leaves, needed, strict=True) if leaf is not None and need]
            return list(torch.autograd.grad(piece, wanted, slope, **options))

        if torch.is_grad_enabled():  # a second derivative
            found = iter(gradients(saved[0], grad, create_graph=True))
            return None, None, None, *(next(found) if need else None for need in needed)
        dx = None
        if needed[0]:
            over = ctx.own and (grad.shape, grad.stride()) == (saved[0].shape, saved[0].stride())
            dx = grad if over else torch.empty_like(saved[0])
        sums: list[Tensor] = []
        for span in ctx.parts:
            found = gradients(saved[0][span], grad[span])
            if dx is not None:
                dx[span] = found.pop(0)
            sums = [a.add_(b) for a, b in zip(sums, found, strict=True)] if sums else found
        rest = iter(sums)
        return None, None, None, dx, *(next(rest) if need else None for need in needed[1:])
