"""An audit finds symmetry where it is, its loss where that was put, and says both in numbers that mean something."""

import math

import pytest
import torch
from torch import nn

import sepgconv as sg
from sepgconv.audit import audit
from sepgconv.audit._changes import changes, shift
from sepgconv.bench.networks import plain_cnn
from sepgconv.data import load

SMALL = sg.KernelConfig(hidden=8, layers=1)


@pytest.fixture(scope="module")
def digits() -> torch.Tensor:
    return load("digits").test.images[:12].float() / 255


def resnet() -> nn.Sequential:
    torch.manual_seed(0)
    return sg.models.resnet(sg.se2(4), kernel=SMALL, width=0.15)


def quarter(done) -> list[float]:
    return [row.error for row in done.rows if row.family == "rotation" and row.exact]


def test_a_quarter_turn_is_exact_for_ours_and_not_for_a_plain_network(digits):
    ours, plain = audit(resnet(), digits, count=8), audit(plain_cnn(0.2), digits, count=8)
    assert len(quarter(ours)) == len(quarter(plain)) == 3
    assert max(quarter(ours)) <= 1e-5
    assert min(quarter(plain)) > 0.1
    assert ours.lost is None
    assert (plain.lost.name, plain.lost.kind) == ("0", "Conv2d")
    assert ours.above(0.01) == []
    assert len(plain.above(0.01)) == 3
    assert all(0 < row.interpolation < 1 for row in ours.rows if row.family == "scale")
    assert all(
        row.untrained is not None and row.untrained < 1e-5 for row in ours.rows if row.exact and "turn" in row.change
    )


def test_a_folded_network_is_audited_likewise(digits):
    model = resnet()
    done, folded = audit(model, digits, count=8), audit(sg.fold(model), digits, count=8)
    assert max(quarter(folded)) <= 1e-5
    assert folded.lost is None
    for ours, theirs in zip(done.rows, folded.rows, strict=True):
        assert theirs.error == pytest.approx(ours.error, rel=1e-3, abs=1e-5)
        assert theirs.untrained is None  # stock layers drawn anew would be another network


def wrong_way(conv: sg.GroupConv) -> None:
    """One element's kernel is turned the wrong way."""
    conv.kernel.points[1] = conv.kernel.points[3].clone()


@pytest.mark.parametrize(("place", "name"), [(lambda net: net[3].conv2, "3.conv2"), (lambda net: net[11], "11")])
def test_a_kernel_turned_the_wrong_way_is_found_and_named(digits, place, name):
    model = resnet()
    wrong_way(place(model))
    done = audit(model, digits, symmetries=["rotation"], count=4)
    assert (done.lost.name, done.lost.kind) == (name, "GroupConv")
    assert done.above(0.001)
    folded = audit(sg.fold(model), digits, symmetries=["rotation"], count=4)
    assert folded.lost.name.split(".")[0] == name.split(".")[0]


@pytest.mark.filterwarnings("ignore::sepgconv.EquivarianceWarning")
def test_a_stride_at_an_even_size_is_found_and_named(digits):
    grid = sg.se2(4)
    settings = {"grid": grid, "kernel": SMALL}
    net = nn.Sequential(
        sg.LiftingConv(1, 4, 5, **settings),
        nn.ReLU(),
        sg.GroupConv(4, 4, 3, stride=2, **settings),
        sg.GroupPool("max"),
        nn.Linear(4, 3),
    )
    done = audit(net, digits, symmetries=["rotation"], count=4)
    assert (done.lost.name, done.lost.kind) == ("2", "GroupConv")
    odd = audit(net, digits[..., 1:, 1:], symmetries=["rotation"], count=4)
    assert odd.lost is None


def test_maps_and_features_turn_with_the_image(digits):
    grid = sg.se2(4)
    lift = sg.LiftingConv(1, 3, 5, grid=grid, kernel=SMALL)
    features = audit(lift, digits, count=4)
    image = audit(nn.Sequential(lift, sg.GroupPool("mean", space=False)), digits, count=4)
    for done in (features, image):
        assert max(quarter(done)) < 1e-5
        assert done.shown is None
        assert all(row.answers is None for row in done.rows)
        (moved,) = [row.error for row in done.rows if row.change == "shifted 1 px right"]
        assert moved is not None
        assert moved < 0.2  # but for the border
    fixed = audit(lambda x: x * torch.linspace(0, 1, 28), digits, count=4)
    assert min(quarter(fixed)) > 0.1


def test_a_constant_does_not_hide_what_is_lost(digits):
    """A plain network whose logits hardly differ is as wrong as one whose do."""
    net = plain_cnn(0.2)
    with torch.no_grad():
        net[-1].bias += 1e3
    done = audit(net, digits, symmetries=["rotation"], count=8)
    assert min(quarter(done)) > 0.1
    assert max(row.relative or 0 for row in done.rows if row.exact) < 1e-3


def test_accuracy_needs_labels_that_fit(digits):
    labels = torch.arange(12) % 10
    done = audit(lambda x: nn.functional.one_hot(labels, 10).float()[: len(x)], digits, labels, count=2)
    assert [entry.accuracy for entry in done.accuracy] == [1.0] * 12
    assert [entry.value for entry in done.accuracy if entry.family == "rotation"][:3] == [0.0, 22.5, 45.0]
    with pytest.raises(ValueError, match="labels must lie below the 3 outputs, got 9"):
        audit(lambda x: x.flatten(1)[:, :3], digits, labels)
    with pytest.raises(ValueError, match="accuracy needs logits"):
        audit(lambda x: x, digits, labels)


def test_the_worst_come_first(digits):
    """A network that looks at one corner of one image."""
    done = audit(lambda x: x.flatten(1)[:, [0, 300, 400]], digits, symmetries=["mirror"], count=8)
    assert done.worst[0].error == max(case.error for case in done.worst if case.before != case.after)
    assert len({case.image for case in done.worst}) == len(done.worst)


def test_mirrors_are_promised_by_their_group(digits):
    torch.manual_seed(0)
    model = sg.models.resnet(sg.e2(4), kernel=SMALL, width=0.1)
    done = audit(model, digits, symmetries=None, count=4)
    assert done.judged == ("rotation", "mirror")
    assert len(done.judged_rows()) == 5
    assert done.above(1e-4) == []
    model[11].kernel.points[1] = model[11].kernel.points[3].clone()
    assert audit(model, digits, symmetries=["rotation", "mirror"], count=4).lost.name == "11"


def test_scales_and_turns_that_are_not_promised_are_not_judged(digits):
    net = nn.Sequential(sg.LiftingConv(1, 3, 5, grid=sg.scale2(3), kernel=SMALL), sg.GroupPool("max"))
    done = audit(net, digits, count=4)
    assert done.judged == ("scale",)
    with pytest.raises(ValueError, match="fail-above has nothing to judge"):
        done.above(0.1)


@pytest.mark.parametrize(
    ("network", "images", "message"),
    [
        (lambda x: x.sum(), torch.rand(4, 1, 9, 9), "must return a vector"),
        (lambda x: [x], torch.rand(4, 1, 9, 9), r"got list"),
        (lambda x: x.flatten(2), torch.rand(4, 1, 9, 9), r"got \(4, 1, 81\)"),
        (nn.Conv2d(3, 2, 3), torch.rand(4, 1, 9, 9), r"the network does not take images of shape \(4, 1, 9, 9\)"),
        (nn.Flatten(), torch.rand(4, 9, 9), r"images must be floats \(b, c, y, x\)"),
        (nn.Flatten(), torch.rand(1, 1, 9, 9), "at least two images are needed"),
    ],
)
def test_what_cannot_be_audited_is_said(network, images, message):
    with pytest.raises(ValueError, match=message):
        audit(network, images)
    with pytest.raises(ValueError, match="symmetries must be out of rotation, mirror, scale, shift; got 'wind'"):
        audit(nn.Flatten(), torch.rand(4, 1, 9, 9), symmetries=["wind"])


def test_the_module_stays_as_it_was(digits):
    model = resnet().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    audit(model, digits, symmetries=["rotation"], count=4)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_shifts_move_pixels_and_read_between_them():
    ramp = torch.arange(12.0).expand(1, 1, 12, 12).contiguous()
    assert torch.equal(shift(ramp, 0, 2)[..., 2:], ramp[..., :-2])
    assert shift(ramp, 0, 2)[..., :2].abs().max() == 0
    assert torch.allclose(shift(ramp, 0, -0.5)[..., 1:-3], ramp[..., 1:-3] + 0.5)
    assert torch.equal(shift(ramp.mT, -3, 0)[..., :-3, :], ramp.mT[..., 3:, :])
    with pytest.raises(ValueError, match=r"whole or half pixels, got 0\.3"):
        shift(ramp, 0, 0.3)


def test_every_change_has_a_way_back():
    line = torch.linspace(-1, 1, 33)
    y, x = torch.meshgrid(line, line, indexing="ij")
    image = torch.exp(-12 * ((y - 0.1) ** 2 + (x + 0.15) ** 2))[None, None]
    for change in changes(["rotation", "mirror", "scale", "shift"], square=True):
        back = change.undo(change.apply(image))
        assert (back - image).abs().max() < (1e-6 if change.exact else 0.06), change.name
        assert change.exact or not math.isclose((change.apply(image) - image).abs().max().item(), 0)
