"""Builds the networks that `sepgconv bench --only export` measures. Workers run this file; see `worker.py`."""

import io
import os
from typing import Any

import torch
from torch import Tensor, nn


class InRuntime(nn.Module):
    """A module as ONNX Runtime runs it: a whole batch at once, or a few images at a time."""

    def __init__(self, module: nn.Module, *, whole: bool) -> None:
        super().__init__()
        from sepgconv.deploy import OnnxNetwork

        example = torch.zeros(2, 1, 28, 28)
        shapes = ({0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO},)
        program = torch.onnx.export(module, (example,), dynamo=True, verbose=False, dynamic_shapes=shapes)
        assert program is not None
        buffer = io.BytesIO(program.model_proto.SerializeToString())
        self.run = OnnxNetwork(buffer.getvalue(), whole=whole)
        self.weight = nn.Parameter(torch.zeros(1))  # workers make an optimiser of what there is

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        return self.run(images)


def build(case: dict[str, Any], width: float) -> nn.Module:
    """The plain CNN or the paper's ResNet on SE(2) with 8 rotations: in torch, folded, or in ONNX Runtime."""
    if case["variant"] == "unfolded-stock":
        os.environ["SEPGCONV_NATIVE"] = "0"  # read when the package is imported
    import sepgconv as sg
    from sepgconv.bench.networks import plain_cnn

    whole = not case["variant"].endswith("-pieces")
    if case["variant"].startswith("plain"):
        plain = plain_cnn(width).eval()
        return plain if case["variant"] == "plain-torch" else InRuntime(plain, whole=whole)
    model = sg.models.resnet(sg.se2(8), kernel=sg.KernelConfig(layers=1), width=width).eval()
    if case["variant"].startswith("folded-onnx"):
        return InRuntime(sg.fold(model, runtime="onnx"), whole=whole)
    return sg.fold(model) if case["variant"] == "folded" else model
