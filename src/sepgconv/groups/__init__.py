"""Groups H acting on R^d, as data."""

from sepgconv.groups._base import Coordinate, Group, Trivial
from sepgconv.groups._linear import SO2, Dilation, OneParameter
from sepgconv.groups._orthogonal import O2, SO3
from sepgconv.groups._product import Product, direct_product

__all__ = [
    "O2",
    "SO2",
    "SO3",
    "Coordinate",
    "Dilation",
    "Group",
    "OneParameter",
    "Product",
    "Trivial",
    "direct_product",
]
