"""What `testing` says about a network: a line per group element."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ElementError:
    """How far a network is from commuting with one group element g.

    `exact` elements map pixels to pixels and grid elements to grid elements: `error` is relative in the maximum norm
    over everything, and only rounding remains. For the others the picture must be interpolated: `error` is relative in
    the Euclidean norm over a central disc, and `interpolation` is what turning the input by g and back costs by itself.
    `output_interpolation` is the same of the output, if it is a picture: what the comparison adds by itself, since a
    picture with kinks, as a ReLU makes them, cannot be turned exactly.

    A constant that all outputs have in common makes `error` small without making a network any more equivariant.
    `variation_error` is the same difference, in the same norm, relative to how much the output varies: to the norm of
    the output minus its mean over the batch. It is None where nothing varies: with a single image, or equal outputs.
    `rounding`, for exact elements, is what the last bit of the input changes, in the same unit.
    """

    element: str
    exact: bool
    error: float
    interpolation: float = 0.0
    variation_error: float | None = None
    rounding: float = 0.0
    output_interpolation: float = 0.0


class EquivarianceReport(list[ElementError]):
    """Errors of all elements; prints as a table."""

    @property
    def exact(self) -> list[ElementError]:
        """Elements for which only rounding remains."""
        return [entry for entry in self if entry.exact]

    @property
    def interpolated(self) -> list[ElementError]:
        """Elements for which the input had to be interpolated."""
        return [entry for entry in self if not entry.exact]

    def __str__(self) -> str:
        names = f"{'error':>10}{'of the variation':>18}{'interpolation alone':>22}{'of the output':>15}"
        lines = [f"{'element':<28}{names}"]
        for entry in self:
            alone = "exact" if entry.exact else f"{entry.interpolation:.1e}"
            varied = "–" if entry.variation_error is None else f"{entry.variation_error:.1e}"
            output = "" if entry.exact else f"{entry.output_interpolation:.1e}"
            lines.append(f"{entry.element:<28}{entry.error:>10.1e}{varied:>18}{alone:>22}{output:>15}".rstrip())
        if any(entry.variation_error is None for entry in self):
            lines.append("–: the output does not vary; give at least two images that differ")
        return "\n".join(lines)
