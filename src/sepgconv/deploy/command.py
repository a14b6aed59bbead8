"""`sepgconv export`: a trained network as a file that is used without this package."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from sepgconv.deploy._export import KINDS, OPSETS, check_request, export
from sepgconv.deploy._script import script
from sepgconv.training.trained import load_trained
from sepgconv.weights import locate


def main(arguments: Sequence[str]) -> int:
    """Exports, checks, and prints how to use the file; returns the exit status."""
    options = _parser().parse_args(arguments)
    check_request(options.output, options.to, options.opset, options.overwrite)  # before the work
    trained = load_trained(locate(options.ckpt))
    done = export(trained, options.output, to=options.to, opset=options.opset, overwrite=options.overwrite)
    where = {"onnx": "in ONNX Runtime", "pt2": "read again by torch.export", "safetensors": "folded, in torch"}
    size = trained.preparation.framing.size
    sizes = "of any size" if done.any_size else f"of {size}×{size} pixels only"
    print(f"wrote {done.path} ({done.path.stat().st_size / 1e6:.1f} MB): any number of images, {sizes}")
    print(f"checked {where[done.kind]}: logits differ from the checkpoint's by {done.difference:.1e} at most")
    print(f"classify with it: sepgconv predict --ckpt {done.path} IMAGE...")
    if done.kind == "onnx":
        print(f"or, without torch and sepgconv, with this file:\n\n{script(done.path)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("sepgconv export", description=__doc__)
    parser.add_argument("--ckpt", required=True, metavar="FILE", help="a run's best.ckpt, or the name of weights")
    parser.add_argument("--to", choices=KINDS, help="the kind of file (by default, as the output's name ends)")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="what to write")
    parser.add_argument("--opset", type=int, metavar="N", help=f"of ONNX, {OPSETS[0]} to {OPSETS[1]} ({OPSETS[0]})")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it is there")
    return parser
