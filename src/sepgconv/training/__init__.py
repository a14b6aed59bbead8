"""Training with Lightning: recipes as data, exact resumption, and a result one can trust."""

from .checkpoints import Checkpoints
from .config import GridConfig, NetworkConfig, OptimiserConfig
from .datamodule import Augment, Images
from .history import History
from .module import Classifier
from .nonfinite import NonFiniteError
from .run import fit

__all__ = [
    "Augment",
    "Checkpoints",
    "Classifier",
    "GridConfig",
    "History",
    "Images",
    "NetworkConfig",
    "NonFiniteError",
    "OptimiserConfig",
    "fit",
]
