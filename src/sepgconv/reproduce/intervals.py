"""The rule of the budget `long`, written down before its runs: paired seeds, and a 95 % interval of the difference.

The two sides of a claim are run with the same seeds. For each seed the difference of the two is taken, and its mean
over the claim's settings (such as numbers of rotations) if there are several. These differences, one per seed, have a
95 % interval by Student's t. The claim is supported if the interval lies on the claimed side of zero, refuted if it
lies on the other, and undecided if it holds zero. Nothing is judged before all runs of a claim are there, so that no
one stops when the numbers look right.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SUPPORTED, REFUTED, UNDECIDED, UNFINISHED = "supported", "refuted", "undecided", "not finished"
QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Of Student's t at 97.5 %, for 1 to 10 degrees of freedom."""


@dataclass(frozen=True)
class Interval:
    """A mean difference and its 95 % interval.

    Args:
        mean: over seeds.
        low: where the interval begins.
        high: where it ends.
        seeds: how many differences there are.
    """

    mean: float
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, differences: Sequence[float]) -> "Interval":
        """From one difference per seed."""
        count = len(differences)
        if not 2 <= count <= len(QUANTILES) + 1:
            raise ValueError(f"an interval needs 2 to {len(QUANTILES) + 1} seeds, got {count}")
        mean = statistics.fmean(differences)
        reach = QUANTILES[count - 2] * statistics.stdev(differences) / math.sqrt(count)
        return cls(mean, mean - reach, mean + reach, count)

    def decide(self, expect: str) -> str:
        """What becomes of a claim that the left side is `lower`, `higher` or `not higher` than the right one."""
        if self.low <= 0 <= self.high:
            return UNDECIDED
        return SUPPORTED if (self.mean > 0) == (expect == "higher") else REFUTED

    def __str__(self) -> str:
        return f"{self.mean:+.3g} [{self.low:+.3g}, {self.high:+.3g}], {self.seeds} seeds"


def paired(left: dict[int, float], right: dict[int, float], seeds: Sequence[int]) -> list[float] | None:
    """The differences of two settings by seed; None if one is missing."""
    if any(seed not in side for seed in seeds for side in (left, right)):
        return None
    return [left[seed] - right[seed] for seed in seeds]
