"""Ways to take a contraction: each knows when it fits, what it costs, how to make weights and how to apply them."""

from sepgconv.execution.ways.axis import Along, Band
from sepgconv.execution.ways.base import Way
from sepgconv.execution.ways.dihedral import Dihedral
from sepgconv.execution.ways.general import Einsum, Space
from sepgconv.execution.ways.product import Fourier, Product

WAYS: tuple[type[Way], ...] = (Space, Product, Fourier, Dihedral, Along, Band, Einsum)

__all__ = ["WAYS", "Along", "Band", "Dihedral", "Einsum", "Fourier", "Product", "Space", "Way"]
