"""Networks on their way out: folded to stock layers, exported, read again.

`fold` is public as `sepgconv.fold`. The rest needs more of the package, and is imported when it is asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from sepgconv.deploy._fold import fold

if TYPE_CHECKING:
    from sepgconv.deploy._export import Export, export
    from sepgconv.deploy._files import Exported, OnnxNetwork, load_network

__all__ = ["Export", "Exported", "OnnxNetwork", "export", "fold", "load_network"]

_LATER = {
    **dict.fromkeys(("Export", "export"), "sepgconv.deploy._export"),
    **dict.fromkeys(("Exported", "OnnxNetwork", "load_network"), "sepgconv.deploy._files"),
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
