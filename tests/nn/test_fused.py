"""In eval without gradients a block makes its norms part of the kernels: the same numbers, and nothing is hidden."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

import sepgconv as sg


def block(factorisation: str = "separable", **grids) -> sg.ResidualBlock:
    grids = grids or {"grid": sg.se2(4)}
    module = sg.ResidualBlock(4, 6, 3, factorisation=factorisation, **grids).double()
    for norm in (module.norm1, module.norm2):
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            nn.init.normal_(tensor)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    return module.eval()


@pytest.mark.parametrize("factorisation", sg.FACTORISATIONS)
def test_a_block_in_eval_equals_its_layers(factorisation: str) -> None:
    grid = sg.sim2(4, 2)
    module = block(factorisation, grid=grid)
    x = torch.randn(2, 4, grid.size, 5, 6, dtype=torch.float64)
    with_gradients = module(x).detach()
    before = x.clone()
    with torch.no_grad():
        assert_close(module(x), with_gradients, atol=1e-12, rtol=1e-10)
        assert_close(module(x), with_gradients, atol=1e-12, rtol=1e-10)  # from the cache
    assert torch.equal(x, before)


def test_changed_norms_are_seen() -> None:
    module, x = block(), torch.randn(1, 4, 4, 5, 5, dtype=torch.float64)
    with torch.no_grad():
        before = module(x)
        module.norm2.running_mean.add_(1)
        assert not torch.allclose(before, module(x))
        module.norm2.running_mean.sub_(1)
        assert_close(module(x), before)


def test_hooks_see_what_every_layer_returns() -> None:
    module, x, seen = block(), torch.randn(1, 4, 4, 5, 5, dtype=torch.float64), {}
    with torch.no_grad():
        expected = module(x)
        for name in ("conv1", "norm1"):
            getattr(module, name).register_forward_hook(lambda m, i, o, name=name: seen.update({name: o}))
        assert_close(module(x), expected)
        assert_close(module.norm1(seen["conv1"]), seen["norm1"])
        assert (seen["norm1"] < 0).any()  # not rectified in place


class WithMore(sg.ResidualBlock):
    """Adds something between the two convolutions: what a block's halves are there for."""

    more: torch.Tensor

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """With `more` besides."""
        return self.finish(features, self.begin(features) + self.more)


class FinishesWithMore(sg.ResidualBlock):
    """The same in the second half."""

    more: torch.Tensor

    def finish(self, features: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """With `more` besides."""
        return super().finish(features, hidden + self.more)


@pytest.mark.parametrize("kind", [WithMore, FinishesWithMore])
@pytest.mark.parametrize("recompute", [False, True])
def test_what_others_read_is_not_written_over(kind: type[WithMore | FinishesWithMore], recompute: bool) -> None:
    """Both terms of a sum are handed the same gradient."""
    module = kind(4, 4, 3, grid=sg.se2(4, sampling="fixed"), recompute=recompute)
    exact = kind(4, 4, 3, grid=sg.se2(4, sampling="fixed"), recompute=recompute).double()
    exact.load_state_dict(module.state_dict())
    x, more = torch.randn(2, 2, 4, 4, 6, 6)
    found = []
    for net, dtype in ((module, torch.float32), (exact, torch.float64)):
        given = [t.detach().to(dtype).requires_grad_() for t in (x, more)]
        net.more = given[1] * 2
        net(given[0]).square().sum().backward()
        found.append([t.grad.double() for t in given if t.grad is not None])
    assert_close(*found, rtol=1e-3, atol=1e-4)


def copies(run, at_least: int) -> list[str]:
    """Operations that copied tensors of at least so many elements."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        run()
    large = []
    for event in recorded.events() or ():
        if event.name in ("aten::copy_", "aten::clone", "aten::contiguous"):
            sizes = [torch.Size(shape).numel() for shape in event.input_shapes if shape]
            if sizes and max(sizes) >= at_least:
                large.append(f"{event.name} {event.input_shapes}")
    return large


CASES = {
    "SE(2) 8": (lambda: sg.se2(8), "separable"),
    "R2xR+ 8": (lambda: sg.scale2(8), "separable"),
    "Sim(2) 4x4": (lambda: sg.sim2(4, 4), "h_separable"),
}


@pytest.mark.parametrize("case", CASES)
def test_no_copy_of_features_hides_in_a_step(case: str) -> None:
    """Features lie channels-last from the lifting to the pooling, forward and backward."""
    make, factorisation = CASES[case]
    net = sg.models.resnet(make(), factorisation=factorisation, kernel=sg.KernelConfig(hidden=8, layers=1), width=0.25)
    x = torch.randn(16, 1, 28, 28)
    smallest = 16 * 7 * 7 * 16 * net[0].grid.size  # features after the last pooling

    def step() -> None:
        net(x).sum().backward()

    step()
    assert copies(step, smallest) == []
    net.eval()
    with torch.no_grad():
        assert copies(lambda: net(x), smallest) == []
