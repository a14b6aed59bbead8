"""Whole networks with the compiled kernels, against the plain way."""

import copy

import pytest
import torch
from torch import nn

import sepgconv as sg
from sepgconv.execution.native import _library

pytestmark = pytest.mark.usefixtures("kernels")
KERNEL = sg.KernelConfig(hidden=8, layers=1)
NETWORKS = {
    "SE(2) 8": (lambda: sg.se2(8, sampling="fixed"), "separable"),
    "R2xR+ 4": (lambda: sg.scale2(4), "separable"),
    "Sim(2) 4x3": (lambda: sg.sim2(4, 3, sampling="fixed"), "h_separable"),
    "SE(2) 4, dense": (lambda: sg.se2(4, sampling="fixed"), "nonseparable"),
}


def network(name: str, **options) -> nn.Module:
    torch.manual_seed(0)
    make, factorisation = NETWORKS[name]
    return sg.models.resnet(make(), factorisation=factorisation, width=0.125, kernel=KERNEL, dropout=0.0, **options)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_is_that_of_the_plain_way(name: str, recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against float64: as close as the plain way in float32, but for a factor of four."""
    model, x = network(name, recompute=recompute), torch.randn(8, 1, 28, 28)
    exact = copy.deepcopy(model).double()
    models = {"exact": exact, "plain": copy.deepcopy(model), "compiled": model}
    found = {}
    for kind, each in models.items():
        if kind == "plain":
            monkeypatch.setattr(_library, "FOUND", False)
        logits = each(x.to(next(each.parameters())))
        logits.square().mean().backward()
        slopes = torch.cat([p.grad.flatten().double() for p in each.parameters()])
        found[kind] = [logits.detach().double(), slopes, torch.cat([b.flatten().double() for b in each.buffers()])]
        monkeypatch.undo()
    for true, plain, compiled in zip(*found.values(), strict=True):
        errors = [((each - true).norm() / true.norm()).item() for each in (plain, compiled)]
        assert errors[1] <= 4 * errors[0] + 1e-6, errors


def test_quarter_turns_stay_exact() -> None:
    model = network("SE(2) 8").eval()
    sg.testing.assert_equivariant(model, torch.randn(4, 1, 28, 28), grid=model[0].grid)


def test_exported_files_hold_no_operator_of_ours() -> None:
    program = torch.export.export(network("SE(2) 8").eval(), (torch.randn(2, 1, 28, 28),))
    assert not any("sepgconv" in str(node.target) for node in program.graph.nodes)
