"""Shapes in annotations are true: everything that a training step and an evaluation call is checked at run time.

In a process of its own, because checked functions cannot be compiled and are slow.
"""

import subprocess
import sys

SCRIPT = """
import sys
import types

from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

checker = types.ModuleType("checker")  # the hook wants a name to import
checker.check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # where a float is asked for, 1 is one
sys.modules["checker"] = checker
core = "groups grids factors siren initialisation kernels functional steps ops nn models".split()
core += ["actions", "testing", "profiling"]
with install_import_hook([f"sepgconv.{name}" for name in core], "checker.check"):
    import sepgconv as sg
import torch

grids = [sg.se2(4), sg.scale2(3), sg.sim2(4, 2), sg.translation2()]
for grid in grids:
    for factorisation in sg.FACTORISATIONS:
        if factorisation == "h_separable" and len(grid.axes) < 2:
            continue
        block = sg.ResidualBlock(2, 3, 3, grid=grid, factorisation=factorisation)
        net = torch.nn.Sequential(sg.LiftingConv(1, 2, 3, grid=grid), sg.BatchNorm(2), block, sg.GroupPool("max"))
        net(torch.randn(2, 1, 8, 8)).sum().backward()
        net.eval()
        with torch.no_grad():
            net(torch.randn(2, 1, 8, 8))
model = sg.models.resnet(sg.se2(4), width=0.1, kernel=sg.KernelConfig(hidden=8))
print(sg.testing.equivariance_error(model, torch.randn(1, 1, 28, 28), grid=sg.se2(4)))
sg.profile(model.eval(), torch.randn(1, 1, 28, 28))
sg.groups.SO2(2).matrix(torch.zeros(5, 1))
try:
    sg.groups.SO2(2).matrix("no tensor")
except Exception as error:
    print("checked:", type(error).__name__)
"""


def test_annotations_hold_at_run_time() -> None:
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    assert "checked: TypeCheckError" in found.stdout, found.stdout
