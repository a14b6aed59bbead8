"""Large convolutions in pieces of a batch, so that what lies in between is only ever there for one piece."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


class Made(NamedTuple):
    """How rows were made of other tensors, for a reader that makes them again instead of keeping them.

    `some(*given, part)` makes part of the rows, `whole(*given)` all of them with their history.
    """

    given: tuple[Tensor | None, ...]
    some: Callable[..., Tensor]
    whole: Callable[..., Tensor]


def in_pieces(
    run: Callable[..., Tensor],
    pieces: int,
    x: Tensor,
    weights: tuple[Tensor, ...],
    bias: Tensor | None = None,
    *,
    own: bool = False,
    again: Callable[..., Tensor] | None = None,
    made: Made | None = None,
) -> Tensor:
    """`run(x, *weights, bias=bias)` for some images at a time, keeping nothing but x: backward runs each piece again.

    With `own`, the gradient that comes back belongs to this operation alone: x's gradient is written over it, if it has
    its shape. Backward runs `again`, if it is given: nobody reads its result, only its gradients count. If it is known
    how x was `made`, it is not kept either.
    """
    ends = [len(x) * piece // pieces for piece in range(pieces + 1)]
    made = made or Made((x,), lambda x, part: x[part], lambda x: x)
    spans = [slice(*pair) for pair in pairwise(ends)]
    return _Pieces.apply((run, again or run), spans, own, made, x, bias, *weights)


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        runs: tuple[Callable[..., Tensor], Callable[..., Tensor]],
        spans: list[slice],
        own: bool,
        made: Made,
        x: Tensor,
        bias: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        ctx.runs, ctx.spans, ctx.own, ctx.layout = runs, spans, own, (x.shape, x.stride())
        ctx.some, ctx.whole, ctx.count = made.some, made.whole, len(made.given)
        ctx.save_for_backward(*made.given, bias, *weights)
        result: Tensor | None = None
        for span in spans:
            piece = runs[0](x[span], *weights, bias=bias)
            result = piece.new_empty(len(x), *piece.shape[1:]) if result is None else result
            result[span] = piece
        assert result is not None
        return result

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, grad, needed = ctx.saved_tensors, grads[0], ctx.needs_input_grad[4:]
        given, rest = saved[: ctx.count], saved[ctx.count :]

        def gradients(x: Tensor, slope: Tensor, **options: bool) -> list[Tensor]:
            """Of one piece, for everything that needs one."""
            leaves = [x, *rest]
            if not options.get("create_graph"):
                leaves = [
                    None if t is None else t.detach().requires_grad_(n) for t, n in zip(leaves, needed, strict=True)
                ]
            first, bias, *weights = leaves
            with torch.enable_grad():
                piece = ctx.runs[not options.get("create_graph")](first, *weights, bias=bias)
            wanted = [leaf for leaf, need in zip(leaves, needed, strict=True) if leaf is not None and need]
            return list(torch.autograd.grad(piece, wanted, slope, **options))

        if torch.is_grad_enabled():  # a second derivative
            found = iter(gradients(ctx.whole(*given), grad, create_graph=True))
            return None, None, None, None, *(next(found) if need else None for need in needed)
        dx = None
        if needed[0]:
            over = ctx.own and (grad.shape, grad.stride()) == ctx.layout
            dx = grad if over else torch.empty_strided(*ctx.layout, dtype=grad.dtype, device=grad.device)
        sums: list[Tensor] = []
        for span in ctx.spans:
            found = gradients(ctx.some(*given, span), grad[span])
            if dx is not None:
                dx[span] = found.pop(0)
            sums = [a.add_(b) for a, b in zip(sums, found, strict=True)] if sums else found
        left = iter(sums)
        return None, None, None, None, dx, *(next(left) if need else None for need in needed[1:])
