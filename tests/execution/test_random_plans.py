"""Every plan against the dense one, on random configurations with a fixed seed: outputs and gradients in float64."""

import random

import pytest
import torch

import sepgconv as sg

CONFIGURATIONS, SHARDS, TOLERANCE = 500, 10, 1e-10
COORDINATES = {"se2": ("", "x", "h", "x h"), "scale2": ("", "x", "h", "x h"), "translation2": ("", "x")}
COORDINATES["sim2"] = (*COORDINATES["se2"], "rotation", "scale", "x rotation", "x scale")
COORDINATES["scale1"] = COORDINATES["scale2"]
COORDINATES["e2"] = (*COORDINATES["se2"], "rotation", "mirror", "x rotation", "x mirror")
COORDINATES["se3"] = COORDINATES["se2"]


def grid(group: str, rng: random.Random) -> sg.Grid:
    sampling, counts = rng.choice(("fixed", "random")), rng.choice((1, 2, 3, 4, 5, 6, 8))
    scales, support = rng.randint(1, 5), rng.randint(1, 2)
    makers = {
        "se2": lambda: sg.se2(counts, sampling=sampling),
        "scale2": lambda: sg.scale2(scales, 2.0, sampling=sampling, scale_support=support),
        "sim2": lambda: sg.sim2(min(counts, 5), min(scales, 3), 2.0, sampling=sampling, scale_support=support),
        "translation2": sg.translation2,
        "scale1": lambda: sg.scale1(scales, 2.0, sampling=sampling),
        "e2": lambda: sg.e2(min(counts, 5), sampling=sampling),
        "se3": lambda: sg.se3(12, sampling=sampling),
    }
    return makers[group]()


def table(group: str, rng: random.Random) -> str | tuple[sg.Factor, ...]:
    """A factorisation by name, or one that nobody has thought of."""
    if rng.random() < 0.4:
        return rng.choice([name for name in sg.FACTORISATIONS if name != "h_separable" or group in ("sim2", "e2")])
    while True:
        count = rng.randint(1, 4)
        factors = [sg.Factor(rng.choice(COORDINATES[group]), rng.choice(("", "i", "j", "ij"))) for _ in range(count)]
        carried = "".join(factor.channels for factor in factors)
        if "i" in carried and "j" in carried:
            return tuple(factors)


def error(seed: int) -> tuple[float, str]:
    """How far a random layer's plans are apart, relative to the largest entry."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    group = rng.choice(list(COORDINATES))
    first, factorisation = grid(group, rng), table(group, rng)
    second = grid(group, rng) if rng.random() < 0.4 else None
    size, stride, padding = (
        rng.choice((1, 3, 5) if first.space < 3 else (1, 3)),
        rng.choice((1, 1, 1, 2)),
        rng.choice(("same", "valid", 1)),
    )
    channels = rng.choice((1, 2, 3, 9)), rng.choice((1, 2, 4, 9))
    settings = {"grid": first, "out_grid": second, "factorisation": factorisation, "bias": rng.random() < 0.3}
    config = sg.KernelConfig(hidden=4, layers=1)
    layer = sg.GroupConv(*channels, size, kernel=config, stride=stride, padding=padding, **settings).double().eval()
    first.resample()
    layer.out_grid.resample()
    image = [rng.randint(*((5, 7) if first.space < 3 else (size, 5))) for _ in range(first.space)]
    x = torch.randn(rng.randint(1, 2), channels[0], first.size, *image, dtype=torch.float64, requires_grad=True)
    found = {}
    for execution in ("dense", "structured"):
        layer.execution = execution
        y = layer(x)
        direction = torch.linspace(-1, 2, y.numel(), dtype=torch.float64).reshape(y.shape)
        gradients = torch.autograd.grad(y, [x, *layer.parameters()], direction)
        found[execution] = [y.detach(), gradients[0], torch.cat([g.flatten() for g in gradients[1:]])]
    pairs = zip(found["dense"], found["structured"], strict=True)
    worst = max(((a - b).abs().max() / a.abs().max().clamp_min(1e-12)).item() for a, b in pairs)
    return worst, f"seed {seed}: {layer}, {factorisation}, stride {stride}\n{layer.plan}"


@pytest.mark.filterwarnings("ignore::sepgconv.EquivarianceWarning")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_plans_agree(shard: int) -> None:
    worst, case = max(error(seed) for seed in range(shard, CONFIGURATIONS, SHARDS))
    print(f"worst of {CONFIGURATIONS // SHARDS}: {worst:.1e}")
    assert worst <= TOLERANCE, case
