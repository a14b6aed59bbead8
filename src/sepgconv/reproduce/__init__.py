"""Every table and figure of the paper as data and one command, beside the published numbers."""

from .experiment import BUDGETS, Experiment, Run, experiments, find

__all__ = ["BUDGETS", "Experiment", "Run", "experiments", "find"]
