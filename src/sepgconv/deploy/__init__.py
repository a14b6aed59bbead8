"""Networks on their way out: folded to stock layers, exported, read again."""

from sepgconv.deploy._fold import fold

__all__ = ["fold"]
