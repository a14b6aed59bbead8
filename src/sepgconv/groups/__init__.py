"""Groups H acting on R^d, as data."""

from sepgconv.groups._base import Group, Trivial
from sepgconv.groups._linear import SO2, Dilation
from sepgconv.groups._product import Product, direct_product

__all__ = ["SO2", "Dilation", "Group", "Product", "Trivial", "direct_product"]
