"""Images of one's own, from a folder or a DataModule: trained, resumed, and predicted with like any other."""

import json
import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningDataModule, Trainer
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset
from training_helpers import GRID, NETWORK, RECIPE, make_run

from sepgconv import cli
from sepgconv.training import Checkpoints, Classifier, History, Images, Loaders, NetworkConfig, fit, load_trained
from sepgconv.training.confusion import Confusion, draw_confusion, figures
from sepgconv.training.from_folder import sensible_epochs

TINY = [option for option in RECIPE if "limit" not in option]


@pytest.fixture
def own(tmp_path, image_folder, data_root) -> Path:
    return image_folder(tmp_path / "own", {"ant": 30, "bee": 12, "cow": 8}, (20, 16))


def test_a_folder_is_all_that_fit_needs_and_predict_knows_its_classes(own, tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    output = tmp_path / "run"
    arguments = ["fit", f"--data.folder={own}", "--config=folder/se2_separable_cpu", *TINY, f"--output={output}"]
    assert cli.main([*arguments, "--model.class_weights=true", "--data.skip_bad=true"]) == 0
    for text in ("3 classes, 1 channels, 20×20 pixels", "bee  8 / 2 / 2", "batch_size: 9 instead of 32"):
        assert text in caplog.text
    result = json.loads((output / "result.json").read_text())["test"]
    counts = torch.tensor(result["confusion"]["counts"])
    assert counts.sum(1).tolist() == [4, 2, 1]
    assert result["accuracy"] == pytest.approx(100 * counts.diagonal().sum().item() / 7, abs=1e-3)
    assert list(result["classes"]) == ["ant", "bee", "cow"]
    capsys.readouterr()
    assert cli.main(["predict", f"--ckpt={output}/checkpoints/best.safetensors", str(own / "ant")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 30
    assert all(
        re.search(r"\d{3}\.png: (ant|bee|cow) \([\d.]+%\)  \[20×16 to 20×20, padded with black\]", x) for x in lines
    )
    assert cli.main(["test", f"--config={output}/config.yaml", "--trainer.enable_progress_bar=false"]) == 0


def test_the_last_run_on_a_folder_may_see_its_validation_images(own):
    data, folder = Images(folder=str(own), batch_size=4, train_on_valid=True), Images(folder=str(own)).data
    split = data.train_dataloader().split
    assert len(split) == len(folder.train) + len(folder.valid)
    assert torch.equal(split.pixels(slice(len(folder.train), None)), folder.valid.pixels(slice(None)))
    assert torch.equal(split.labels[len(folder.train) :], folder.valid.labels)


def test_a_run_does_not_go_on_with_other_images(own, tmp_path, capsys):
    arguments = ["fit", f"--data.folder={own}", "--config=folder/se2_separable_cpu", *TINY, f"--output={tmp_path}/run"]
    assert cli.main(arguments) == 0
    Image.new("L", (20, 16), 9).save(own / "ant" / "000.png")
    assert cli.main([*arguments, "--trainer.max_epochs=2", "--ckpt_path=last"]) == 1
    assert re.search("data.images was '[0-9a-f]{16}', is '[0-9a-f]{16}'", capsys.readouterr().err)


def test_a_folder_that_changes_while_it_is_trained_on_changes_nothing(own):
    data = Images(folder=str(own), batch_size=4)
    before = [images for images, _ in data.train_dataloader()]
    for file in own.rglob("*.png"):
        file.unlink()
    assert all(torch.equal(a, b) for a, (b, _) in zip(before, data.train_dataloader(), strict=True))


def test_options_of_folders_need_one(capsys):
    assert cli.main(["fit", "--config=folder/se2_separable_cpu"]) == 1
    assert "unless it follows from a folder: set --data.folder" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"data\.size is about images of a folder: set data\.folder, too"):
        Images("digits", size=32)


def test_a_sensible_length_is_about_as_many_steps_for_any_folder():
    assert sensible_epochs(32, 1405) == 35
    assert sensible_epochs(32, 351) == 150
    assert sensible_epochs(32, 40) == 200
    assert sensible_epochs(32, 50_000) == 10


def pairs(count: int = 12) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, 1, 28, 28, generator=generator), torch.arange(count) % 3)


class Own(LightningDataModule):
    """As somebody writes it who has not read our documentation."""

    def train_dataloader(self):
        return DataLoader(pairs(), 4)

    def val_dataloader(self):
        return DataLoader(pairs(6), 6)


class Told(Own):
    """With what `predict` should know."""

    class_names, mean, std = ("x", "y", "z"), 0.5, (0.25,)

    def test_dataloader(self):
        return DataLoader(pairs(6), 6)


def trained(folder: Path, data, **options) -> tuple[dict, Path]:
    trainer, _, _ = make_run(folder, limit_val_batches=1.0, limit_test_batches=1.0, max_epochs=1, **options)
    network = NetworkConfig(**{**vars(NETWORK), "num_classes": 3})
    return fit(trainer, Classifier(network, GRID), data), folder / "run" / "checkpoints"


def test_anybodys_datamodule_is_fitted_and_predicted_with(tmp_path, capsys):
    result, checkpoints = trained(tmp_path, Own())
    assert result["test"] == {}
    assert result["steps"] == 3
    found = load_trained(checkpoints / "best.ckpt")
    assert found.classes == ("0", "1", "2")
    assert not found.preparation.known
    Image.new("L", (28, 28), 100).save(tmp_path / "a.png")
    assert cli.main(["predict", f"--ckpt={checkpoints}/best.safetensors", str(tmp_path / "a.png")]) == 0
    assert "does not say how its images were normalised" in capsys.readouterr().err


def test_a_datamodule_that_says_how_it_prepares_images_is_believed(tmp_path):
    result, checkpoints = trained(tmp_path, Told())
    assert sum(map(sum, result["test"]["confusion"]["counts"])) == 6
    for name in ("best.ckpt", "best.safetensors", "last.ckpt"):
        found = load_trained(checkpoints / name)
        assert found.classes == ("x", "y", "z")
        assert (found.preparation.mean, found.preparation.std) == ((0.5,), (0.25,))
        assert torch.equal(
            found.preparation(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)).flatten(), torch.tensor([2.0])
        )


def test_datasets_and_loaders_do_without_a_datamodule(tmp_path):
    data = Loaders(pairs(), DataLoader(pairs(6), 6), pairs(6), batch_size=4, class_names="xyz", mean=0.5, std=0.5)
    result, checkpoints = trained(tmp_path, data)
    assert result["steps"] == 3
    assert load_trained(checkpoints / "best.ckpt").classes == ("x", "y", "z")
    with pytest.raises(ValueError, match="mean and std go together"):
        Loaders(pairs(), pairs(), mean=0.5)
    with pytest.raises(ValueError, match="2 class names, but the network has 3 classes"):
        trained(tmp_path / "names", Loaders(pairs(), pairs(), class_names="xy"))


def test_a_bare_loader_with_a_bare_trainer(tmp_path):
    trainer = Trainer(
        default_root_dir=tmp_path,
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[History(), Checkpoints()],
    )
    network = NetworkConfig(**{**vars(NETWORK), "num_classes": 3})
    trainer.fit(Classifier(network, GRID), DataLoader(pairs(), 4), DataLoader(pairs(6), 6))
    assert load_trained(tmp_path / "checkpoints" / "best.ckpt").classes == ("0", "1", "2")


def test_rare_classes_weigh_more(own):
    data = Images(folder=str(own), batch_size=4)
    assert data.class_counts.tolist() == [22, 8, 6]
    network = NetworkConfig(**{**vars(NETWORK), "num_classes": 3, "image_size": 20})
    classifier = Classifier(network, GRID, class_weights=True)
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, fast_dev_run=True, barebones=False)
    trainer.fit(classifier, datamodule=data)
    assert classifier.weights is not None
    assert (classifier.weights * data.class_counts).tolist() == pytest.approx([12.0] * 3)
    assert "weights" not in classifier.state_dict()
    with pytest.raises(ValueError, match="class_weights needs data that has class_counts"):
        trainer.fit(Classifier(network, GRID, class_weights=True), datamodule=Own())


def test_figures_per_class():
    metric = Confusion(3)
    predicted = torch.tensor([0, 0, 1, 1, 1, 0])
    metric.update(torch.nn.functional.one_hot(predicted, 3), torch.tensor([0, 0, 0, 1, 1, 1]))
    assert metric.counts.tolist() == [[2, 1, 0], [1, 2, 0], [0, 0, 0]]
    assert metric.compute().item() == pytest.approx(100 / 3)
    found = figures(metric.counts, "abc")
    assert found["classes"]["a"] == {"images": 3, "recall": 66.667, "precision": 66.667, "f1": 66.667}
    assert found["classes"]["c"] == {"images": 0, "recall": None, "precision": None, "f1": None}
    assert found["balanced_accuracy"] == 66.667


def test_the_picture_of_many_classes_is_drawn(tmp_path):
    draw_confusion(torch.eye(30, dtype=torch.int64), [str(i) for i in range(30)], tmp_path / "many.png")
    assert Image.open(tmp_path / "many.png").size[0] > 500
