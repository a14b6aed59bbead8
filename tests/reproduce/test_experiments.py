import re

import pytest

from sepgconv.data.registry import names
from sepgconv.reproduce import BUDGETS, experiments, find
from sepgconv.reproduce.claims import WORDS
from sepgconv.reproduce.data import DIGITS, images, shape
from sepgconv.reproduce.experiment import ORDER, put, regime
from sepgconv.reproduce.measures import MEASURES
from sepgconv.reproduce.runs import classifier
from sepgconv.reproduce.summary import published
from sepgconv.training import GridConfig, NetworkConfig, OptimiserConfig

every = pytest.mark.parametrize("experiment", experiments(), ids=lambda e: e.id)


def test_there_are_sixteen() -> None:
    assert len(ORDER) == len(set(ORDER)) == 16


@every
@pytest.mark.parametrize("budget", BUDGETS)
def test_all_runs_are_well_formed(experiment, budget: str) -> None:
    """Settings that the networks, grids, optimisers and data take; no two runs alike, names that are file names."""
    runs = experiment.runs(budget)
    assert len({run.name for run in runs}) == len(runs)
    assert bool(runs) == experiment.has(budget)
    for run in runs:
        config = run.config
        assert re.fullmatch(r"[\w=,.+\-²⁺×⋊]+", run.name)
        assert config["data"]["name"] in {*names(), *DIGITS}
        assert config["measure"] in MEASURES
        OptimiserConfig(**config["optimiser"])
        grid = GridConfig(**config["grid"])
        assert NetworkConfig(**{**config["network"], "kernel": regime()["defaults"]["network"]["kernel"]}).name
        assert grid.build().space == 2
        assert shape(config["data"]["name"])[2] in (10, 100)


@every
def test_smoke_needs_no_files(experiment) -> None:
    trained = [run for run in experiment.runs("smoke") if run.config["measure"] != "parameters"]
    assert all(run.config["data"]["name"].startswith("digits") for run in trained)


@every
def test_paper_is_the_published_regime(experiment) -> None:
    for run in experiment.runs("paper"):
        config = run.config
        galaxy = config["data"]["name"] == "galaxy10"
        sota = experiment.id == "rotmnist-sota"
        assert config["optimiser"] == {
            "schedule": "paper",
            "lr": 2.5e-5 if galaxy else 1e-4,
            "weight_decay": 1e-4,
            "warmup": 0.25,
        }
        assert config["data"]["batch_size"] == (32 if galaxy else 64 if sota else 128)
        assert config["epochs"] == {"rotmnist-sota": 300, "allcnnc": 300, "factorisations": 150}.get(experiment.id, 200)
        assert config["shrink"] == 1
        assert config["data"]["limit"] is config["data"]["test"] is None
        assert config["network"]["kernel"]["omega0"] == 10


def test_the_long_budget_sees_all_images_and_times_nothing() -> None:
    for experiment in experiments():
        for run in experiment.runs("long"):
            assert run.config["data"]["limit"] == run.axes.get("images", 10_000)
            assert run.config["timing"] is None
            assert not run.config["data"]["augment"]["rotate"]
            assert run.seed < (5 if experiment.id in ("resolution", "sampling", "scale-extent", "activations") else 3)


def test_the_long_budget_compares_factorisations_at_equal_numbers_of_parameters() -> None:
    counts = {}
    for run in find("factorisations").runs("long"):
        counts[run.axes["factorisation"]] = sum(p.numel() for p in classifier(run).net.parameters())
    assert len(counts) == 5
    assert max(counts.values()) < 1.03 * min(counts.values())


def test_other_settings_are_another_run() -> None:
    run = find("sampling").runs("smoke")[0]
    assert run.name == find("sampling").runs("smoke")[0].name
    put(run.config, "network.width", 2.0)
    assert run.name != find("sampling").runs("smoke")[0].name


def test_recipes_cannot_set_what_is_not_there() -> None:
    with pytest.raises(ValueError, match="widht"):
        put({"network": {"width": 1.0}}, "network.widht", 2.0)


def test_unknown_names_are_named() -> None:
    with pytest.raises(ValueError, match=r"redundancy, .* got 'resolutoin'; did you mean 'resolution'\?"):
        find("resolutoin")
    with pytest.raises(ValueError, match=r"smoke, cpu, long, paper; got 'papr'; did you mean 'paper'\?"):
        find("sampling").runs("papr")


def test_embedded_digits_are_changed_like_the_papers_sets() -> None:
    config = find("sim2-grid").runs("smoke")[0].config
    data = images(config, seed=0)
    assert data.data_name == "digits-rot-scale"
    assert data.shape == (1, 28, 28)
    assert len(data.data.test) == 200


@every
def test_what_recipes_refer_to_is_there(experiment) -> None:
    """Axes of figures, claims and published values are axes of the sweep, at every budget they apply to."""
    recipe, runs = experiment.recipe, experiment.runs("paper")
    axes = {name for run in runs for name in run.axes}
    for budget in ("paper", *(["long"] if experiment.has("long") else [])):
        swept = experiment.runs(budget)
        for claim in experiment.claims(budget):
            assert claim["expect"] in WORDS
            assert set(claim.get("at", {})) <= {name for run in swept for name in run.axes}
            for side in ("left", "right"):
                where = claim[side].get("where", {})
                assert any(all(run.axes.get(k) == v for k, v in where.items()) for run in swept), where
    for value in published(experiment.id):
        if value.where is not None:
            assert any(all(run.axes.get(k) == v for k, v in value.where.items()) for run in runs), value
    for panel in recipe["figure"].get("panels", ()):
        assert {panel["x"], panel["series"]} <= axes
