"""Training with Lightning: recipes as data, exact resumption, and a result one can trust."""

from .checkpoints import Checkpoints
from .config import GridConfig, NetworkConfig, OptimiserConfig
from .datamodule import Augment, Images
from .history import History
from .loaders import Loaders
from .module import Classifier
from .nonfinite import NonFiniteError
from .run import fit
from .trained import Trained, load_trained

__all__ = [
    "Augment",
    "Checkpoints",
    "Classifier",
    "GridConfig",
    "History",
    "Images",
    "Loaders",
    "NetworkConfig",
    "NonFiniteError",
    "OptimiserConfig",
    "Trained",
    "fit",
    "load_trained",
]
