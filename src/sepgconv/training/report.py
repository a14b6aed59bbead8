"""What a run leaves behind: `result.json`, with all it takes to judge and repeat it."""

import json
from pathlib import Path
from typing import Any

from sepgconv.data.places import atomic_write

RESULT = "result.json"


def write_result(result: dict[str, Any], folder: Path) -> Path:
    """Writes `result.json`; returns its path."""
    path = folder / RESULT
    with atomic_write(path) as file:
        file.write((json.dumps(result, indent=2, default=str) + "\n").encode())
    return path
