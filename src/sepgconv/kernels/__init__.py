"""Continuous kernels on G = R^d ⋊ H: how they factorise, what they are made of, and their values on a grid."""

from sepgconv.kernels._factors import FACTORISATIONS, LIFTING, Factor, Term, resolve
from sepgconv.kernels._fourier import FourierBasis
from sepgconv.kernels._kernel import GroupKernel
from sepgconv.kernels._networks import PARAMETRISATIONS, KernelConfig, KernelNetwork
from sepgconv.kernels._parametrisation import Domain, Parametrisation
from sepgconv.kernels._penalty import frequency_penalty
from sepgconv.kernels._values import Values, multiply
from sepgconv.kernels._window import ball, taps

__all__ = [
    "FACTORISATIONS",
    "LIFTING",
    "PARAMETRISATIONS",
    "Domain",
    "Factor",
    "FourierBasis",
    "GroupKernel",
    "KernelConfig",
    "KernelNetwork",
    "Parametrisation",
    "Term",
    "Values",
    "ball",
    "frequency_penalty",
    "multiply",
    "resolve",
    "taps",
]
