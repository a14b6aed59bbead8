"""The command `sepgconv`: a dispatcher that imports only what a command needs."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

HELP = """\
sepgconv: separable group convolutions, from a recipe to a trained network

  sepgconv demo                             train on embedded digits, test on rotated ones (minutes)
  sepgconv fit --config RECIPE.yaml         train, test once with the best weights, write result.json
  sepgconv validate --config RECIPE.yaml    evaluate a checkpoint on the validation set
  sepgconv test --config RECIPE.yaml        evaluate a checkpoint on the test set
  sepgconv predict --ckpt FILE IMAGE...     classify image files, folders of them
  sepgconv audit --ckpt FILE --images DIR   how much turns, mirrors, scales and shifts change the answers
  sepgconv combine --ckpt FILE FILE...      one ensemble out of the networks of several runs
  sepgconv export --ckpt FILE --output F    an ONNX, pt2 or safetensors file that needs no sepgconv
  sepgconv recipes list | copy              the recipes that come with the package
  sepgconv bench                            time and memory on several groups, against the plain CNN
  sepgconv data list | prepare | show       data sets: what there is, fetch, look at
  sepgconv reproduce list | ID | all        the paper's tables and figures, beside the published numbers
  sepgconv info                             versions, devices, threads, and whether the compiled kernels are in use

`sepgconv COMMAND --help` says more. Recipes are in recipes/, and docs/training.md is the page on training.
"""

TRAINING_HELP = """\
usage: sepgconv {command} --config RECIPE.yaml [--KEY VALUE ...]

{purpose}

Any key of a recipe can be set on the command line, too; the last one given counts. The ones most often set:

  --output DIR                      where the run is kept (runs/latest)
  --ckpt_path last | best | FILE    {ckpt}
  --seed_everything N               the seed of all that is random (0)
  --trainer.max_epochs N            how long to train
  --trainer.devices N               processes or GPUs on a machine; with --trainer.strategy ddp
  --trainer.num_nodes N             machines
  --trainer.precision bf16-mixed    mixed precision (32-true)
  --data.name NAME                  the data set, see `sepgconv data list` (digits)
  --data.folder DIR                 images of your own instead: a subfolder per class, or a CSV; also .size, .crop
  --data.root DIR                   where its files are ($SEPGCONV_DATA, else the user's cache)
  --data.batch_size N               images in a step, over all processes (64)
  --data.limit N                    train on N images only
  --data.augment.rotate true        turn training images; also .scale 0.8, .shift 2, .flip true
  --data.rotate_test true           turn test images
  --model.network.name NAME         resnet, allcnnc; also .factorisation, .width, .kernel.layers
  --model.grid.group GROUP          also .rotations, .scales, .max_scale; one of
                                    {groups}
  --model.optimiser.schedule NAME   onecycle (AdamW, short runs), paper (Adam, constant); also .lr
  --model.network.recompute true    less memory, more time: activations are computed again
  --compile                         compile the network (--model.compile true, or a backend's name)
  --checkpoint.every_n_steps N      how often the last checkpoint is written (100, and every epoch)

  --print_config                    print the whole recipe, with all overrides, and stop
  --help-all                        every key there is, those of Lightning's Trainer included
"""

PURPOSES = {
    "fit": (
        "Train, test once with the weights that are best on validation, and write result.json.",
        "go on with a run: exactly, after a kill at any moment",
    ),
    "validate": ("Evaluate a checkpoint on the validation set.", "which checkpoint (best)"),
    "test": ("Evaluate a checkpoint on the test set.", "which checkpoint (best)"),
}

SMALLEST = "recipes/digits/se2_separable_smoke.yaml (a minute, nothing to download)"
SHORT = {"--help-all": "--help", "--compile": "--model.compile=true"}

# Command → module with a `main(arguments) -> exit status`.
MODULES = {
    "audit": "sepgconv.audit.command",
    "demo": "sepgconv.demo",
    "bench": "sepgconv.bench.command",
    "combine": "sepgconv.training.combine",
    "data": "sepgconv.data.command",
    "export": "sepgconv.deploy.command",
    "info": "sepgconv.info",
    "predict": "sepgconv.training.predict",
    "recipes": "sepgconv.training.recipes",
    "reproduce": "sepgconv.reproduce.command",
    **dict.fromkeys(PURPOSES, "sepgconv.training.command"),
}
DEBUG = "SEPGCONV_DEBUG"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if arguments else 2
    command, rest = arguments[0], arguments[1:]
    if command == "--version":
        from sepgconv import __version__

        print(f"sepgconv {__version__}")
        return 0
    if command not in MODULES:
        import difflib

        near = difflib.get_close_matches(command, MODULES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        print(f"sepgconv: command must be one of {', '.join(MODULES)}; got {command!r}{hint}", file=sys.stderr)
        return 2
    if command in PURPOSES:
        from sepgconv.grids import GRIDS

        purpose, ckpt = PURPOSES[command]
        text = TRAINING_HELP.format(command=command, purpose=purpose, ckpt=ckpt, groups=", ".join(GRIDS))
        if "--help" in rest or "-h" in rest:
            print(text, end="")
            return 0
        if not rest:
            advice = f"the smallest is {SMALLEST}" if command == "fit" else "the run's own is config.yaml in its output"
            print(f"{text}\nsepgconv {command}: a recipe is needed; {advice}", file=sys.stderr)
            return 2
        rest = [command, *(SHORT.get(option, option) for option in rest)]
    return _run(command, rest)


def _run(command: str, arguments: list[str]) -> int:
    """Tunes, imports, runs; an error that a user can do something about is a message, not a traceback."""
    if importlib.util.find_spec("sepgconv.tuning"):
        importlib.import_module("sepgconv.tuning").tune()
    try:
        return importlib.import_module(MODULES[command]).main(arguments) or 0
    except Exception as error:
        foreseen = isinstance(error, ValueError | OSError | ArithmeticError)
        if os.environ.get(DEBUG) or not (foreseen or type(error).__name__ == "MisconfigurationException"):
            raise
        print(f"sepgconv {command}: {error}\n(set {DEBUG}=1 for the traceback)", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
