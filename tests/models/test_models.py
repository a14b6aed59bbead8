import itertools
import re
import warnings

import pytest
import torch

import sepgconv as sg


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("grid", "factorisation", "two_layers", "one_layer"),
    [
        (sg.se2(8), "nonseparable", 742_506, 716_490),
        (sg.se2(8), "separable", 803_242, 755_370),
        (sg.sim2(4, 4), "h_separable", 864_330, 794_602),
    ],
)
def test_resnet_has_the_published_number_of_parameters(grid, factorisation, two_layers, one_layer) -> None:
    assert count(sg.models.resnet(grid, 1, 10, factorisation=factorisation)) == two_layers
    assert count(sg.models.resnet(grid, factorisation=factorisation, kernel=sg.KernelConfig(layers=1))) == one_layer


@pytest.mark.parametrize(("hidden", "parameters"), [(5, 1_136_653), (6, 1_325_864), (16, 3_220_724)])
def test_allcnnc_has_the_published_number_of_parameters(hidden: int, parameters: int) -> None:
    kernel = sg.KernelConfig(hidden=hidden, layers=1)
    model = sg.models.allcnnc(sg.sim2(8, 3), 3, 10, factorisation="h_separable", kernel=kernel)
    assert count(model) == parameters


@pytest.mark.parametrize("name", sg.models.list())
@pytest.mark.parametrize("grid", [sg.se2(4), sg.sim2(2, 2), sg.scale2(2), sg.translation2()], ids=str)
def test_every_model_runs_and_learns(name: str, grid: sg.Grid) -> None:
    model = sg.models.create(name, grid, in_channels=2, num_classes=5, width=0.2)
    x = torch.randn(4, 2, 28, 28)
    logits = model(x)
    assert logits.shape == (4, 5)
    logits.square().mean().backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not without
    assert model.eval()(torch.randn(1, 2, 32, 40)).shape == (1, 5)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("grid", [sg.scale2(3, 2.0), sg.sim2(4, 2, 2.0), sg.scale1(3, 2.0), sg.scale3(2, 2.0)], ids=str)
def test_a_resnet_on_a_pyramid_learns_and_folds(grid: sg.Grid, antialias: bool, centred: bool) -> None:
    torch.manual_seed(0)
    settings = {"pyramid": True, "antialias": antialias, "centred": centred, "image_size": 16}
    model = sg.models.resnet(grid, 2, 5, width=0.1, **settings)
    x = torch.randn(4, 2, *[16] * grid.space)
    model(x).square().mean().backward()
    assert not [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    folded = sg.fold(model.eval())
    assert torch.allclose(folded(x), model(x), atol=1e-5)


def test_a_resnet_on_a_pyramid_may_leave_out_scales() -> None:
    model = sg.models.resnet(sg.scale2(3, 2.0), width=0.1, pyramid=True, scale_dropout=0.5)
    assert [m.dropout for m in model.modules() if isinstance(m, sg.ScalePool)] == [0.5]


@pytest.mark.parametrize("centred", [False, True])
def test_a_resnet_on_a_pyramid_has_the_same_weights_as_without_scales(centred: bool) -> None:
    model = sg.models.resnet(sg.sim2(4, 3), width=0.2, pyramid=True, finest=0.5, centred=centred)
    plain = sg.models.resnet(sg.se2(4), width=0.2)
    assert [p.shape for p in model.parameters()] == [p.shape for p in plain.parameters()]


@pytest.mark.parametrize("antialias", [False, True])
def test_a_centred_pyramid_of_one_image_is_the_network_without_scales(antialias: bool) -> None:
    torch.manual_seed(0)
    model = sg.models.resnet(sg.sim2(4, 1, 1.0), width=0.2, pyramid=True, centred=True, antialias=antialias)
    plain = sg.models.resnet(sg.se2(4), width=0.2, antialias=antialias)
    plain.load_state_dict(dict(zip(plain.state_dict(), model.state_dict().values(), strict=True)))
    images = torch.randn(3, 1, 28, 28)
    assert torch.allclose(model.eval()(images), plain.eval()(images), atol=1e-6)


@pytest.mark.parametrize("width", [2.5, 0.98, 0.72])
def test_width_multiplies_channels(width: float) -> None:
    model = sg.models.resnet(sg.scale2(2), width=width, factorisation="dgseparable")
    assert model[0].out_channels == round(32 * width)


@pytest.mark.parametrize(("name", "rates"), [("resnet", [0.3]), ("allcnnc", [0.2, 0.5, 0.5])])
@pytest.mark.parametrize("dropout", [1.0, 0.5, 0.0])
def test_dropout_multiplies_the_published_rates(name: str, rates: list[float], dropout: float) -> None:
    model = sg.models.create(name, sg.se2(4), width=0.1, dropout=dropout)
    found = [layer.p for layer in model.modules() if isinstance(layer, torch.nn.Dropout)]
    assert found == [rate * dropout for rate in rates]


def test_larger_images_get_a_larger_last_kernel() -> None:
    sizes = {
        image: sg.models.resnet(sg.se2(4), width=0.1, image_size=image)[11].kernel_size
        for image in (28, 32, 64, 69, 128)
    }
    assert sizes == {28: 3, 32: 3, 64: 9, 69: 11, 128: 11}


def test_bad_settings() -> None:
    with pytest.raises(
        ValueError, match=r"model must be one of allcnnc, resnet, shallow; got 'resnett' \(did you mean 'resnet'\?\)"
    ):
        sg.models.create("resnett", sg.se2(4))
    with pytest.raises(ValueError, match="width must be positive, got 0"):
        sg.models.resnet(sg.se2(4), width=0)
    with pytest.raises(ValueError, match="pyramid=True needs a grid with dilations, such as scale2 or sim2; got Grid"):
        sg.models.resnet(sg.se2(4), pyramid=True)
    with pytest.raises(ValueError, match=r"centred=False, finest=0\.5 and scale_dropout=0\.0 are for pyramid=True"):
        sg.models.resnet(sg.scale2(3), finest=0.5)
    with pytest.raises(ValueError, match="recompute is not for a pyramid, got recompute=True with pyramid=True"):
        sg.models.resnet(sg.scale2(3), pyramid=True, recompute=True)
    for name, number in itertools.product(sg.models.list(), (0, -1, 2.5, True, "3")):
        message = f"num_classes must be a whole number of at least 1, got {number!r}"
        with pytest.raises(ValueError, match=re.escape(message)):
            sg.models.create(name, sg.se2(4), width=0.1, num_classes=number, kernel=sg.KernelConfig(hidden=4))


@pytest.mark.parametrize(
    ("name", "size"), [("resnet", 28), ("resnet", 29), ("resnet", 26), ("allcnnc", 32), ("allcnnc", 17)]
)
def test_antialiased_models_keep_weights_and_quarter_turns(name: str, size: int) -> None:
    torch.manual_seed(0)
    settings = {"in_channels": 1, "width": 0.1, "image_size": size}
    model = sg.models.create(name, sg.se2(4), antialias=True, **settings)
    plain = sg.models.create(name, sg.se2(4), **settings)
    assert {k: v.shape for k, v in model.state_dict().items()} == {k: v.shape for k, v in plain.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error", sg.EquivarianceWarning)
        sg.testing.assert_equivariant(model, torch.randn(3, 1, size, size), grid=sg.se2(4))


def test_the_plain_models_do_not_change() -> None:
    """Weights of before load and mean the same: no filter, no mean, the paper's last kernel."""
    pools = [m for m in sg.models.resnet(sg.se2(4), width=0.1) if isinstance(m, sg.SpatialPool | sg.GroupPool)]
    assert [str(pool) for pool in pools] == [
        *["SpatialPool('max', kernel_size=2, stride=2, padding=0)"] * 2,
        "GroupPool('max', space=True)",
    ]


def waves_for_weights(model: torch.nn.Module) -> torch.nn.Module:
    """Weights that depend on nothing but their names and shapes."""
    model = model.double().eval()
    for place, (name, value) in enumerate(sorted(model.state_dict().items())):
        if value.is_floating_point():
            wave = torch.sin(1.0 + place + torch.arange(value.numel(), dtype=torch.float64)).reshape(value.shape)
            size = 3 / max(value[0].numel(), 1) ** 0.5 if value.ndim > 1 else 0.3
            value.copy_(wave * size + float("running_var" in name))
            if "running_var" in name:
                value.abs_().add_(0.5)
    return model


@pytest.mark.parametrize(
    ("name", "logits"),
    [
        ("resnet", [[4.1297105395, -2.2521199632, -4.2694840866], [3.6492386592, -1.7877968470, -3.8259637457]]),
        ("allcnnc", [[14.9571927763, 254.1076547187, 372.4942696070], [22.4144633779, 366.8827593859, 497.7259885167]]),
    ],
)
def test_weights_of_before_compute_the_same(name: str, logits: list[list[float]]) -> None:
    """Written down by 607cf29, which had neither filters nor cut-offs."""
    model = waves_for_weights(sg.models.create(name, sg.se2(4), in_channels=1, num_classes=3, width=0.1))
    x = torch.sin(torch.arange(2 * 28 * 28, dtype=torch.float64) ** 1.1).reshape(2, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(model(x), torch.tensor(logits, dtype=torch.float64), rtol=1e-9, atol=1e-9)
