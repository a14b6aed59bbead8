"""A compiled run is resumed, saved and loaded like any other. Backends that need no C++ compiler keep this fast."""

import pytest
import torch
from lightning.pytorch import Callback
from training_helpers import GRID, NETWORK, RECIPE, assert_same

from sepgconv import cli
from sepgconv.training import Checkpoints, Classifier, fit, run, storage
from sepgconv.training.command import TrainingCLI


class Interrupt(Callback):
    """Stops a run at a step."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if trainer.global_step == 2:
            raise InterruptedError


def test_a_compiled_run_is_resumed_exactly(tiny, monkeypatch):
    monkeypatch.setattr(run, "draw_curves", lambda *_: None)

    def begin(folder: str, **options):
        trainer, _, data = tiny(folder, max_epochs=1, **options)
        return trainer, Classifier(NETWORK, GRID, compile="eager"), data  # what it computes is tested below

    whole = begin("whole")
    expected = fit(*whole)
    with pytest.raises(InterruptedError):
        fit(*begin("part", callbacks=[Interrupt()]))
    part = begin("part")
    assert_same(fit(*part, ckpt_path="last")["metrics"], expected["metrics"])
    saved = storage.read(Checkpoints.folder(part[0]) / "last.ckpt")
    assert_same(saved["state_dict"], storage.read(Checkpoints.folder(whole[0]) / "last.ckpt")["state_dict"])
    plain = Classifier(NETWORK, GRID)
    assert list(plain.state_dict()) == list(saved["state_dict"])
    plain.load_state_dict(saved["state_dict"])


def test_a_step_is_the_same_compiled():
    """In float64: a compiled norm sums in float32 as torch does, ours more exactly."""
    images, labels = torch.randn(4, 1, 28, 28, dtype=torch.float64), torch.tensor([1, 2, 3, 4])
    seen = []
    for backend in (False, "aot_eager"):
        torch.manual_seed(0)
        classifier = Classifier(NETWORK, GRID, compile=backend).double()
        torch.manual_seed(1)
        torch.nn.functional.cross_entropy(classifier(images), labels).backward()
        seen.append([*[p.grad for p in classifier.net.parameters()], *classifier.net.buffers()])
    for a, b in zip(*seen, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-10)


def test_the_command_line_has_a_short_form(monkeypatch):
    monkeypatch.setattr(TrainingCLI, "fit", lambda self, **_: None)
    seen = []
    monkeypatch.setattr("sepgconv.training.module.compile_in_place", lambda net, backend: seen.append(backend))
    assert cli.main(["fit", *RECIPE, "--compile"]) == 0
    assert cli.main(["fit", *RECIPE, "--model.compile=aot_eager"]) == 0
    assert cli.main(["fit", *RECIPE]) == 0
    assert seen == ["inductor", "aot_eager"]


def test_a_missing_compiler_is_a_message(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert cli.main(["fit", *RECIPE, "--compile", f"--output={tmp_path}"]) == 1
    shown = capsys.readouterr().err
    assert "compile needs a C++ compiler, and 'no-such-compiler' is not there: install one" in shown
    assert "Traceback" not in shown
    with pytest.raises(ValueError, match=r"compile must be true, false or one of eager, .*; got 'fast'"):
        Classifier(NETWORK, GRID, compile="fast")


def test_a_recipe_can_recompute_activations(monkeypatch):
    monkeypatch.setattr(TrainingCLI, "fit", lambda self, **_: None)
    built = TrainingCLI(["fit", *RECIPE, "--model.network.recompute=true"])
    assert built.model.net[3].recompute
    kept = TrainingCLI(["fit", *RECIPE])
    assert not kept.model.net[3].recompute
    assert list(built.model.state_dict()) == list(kept.model.state_dict())
