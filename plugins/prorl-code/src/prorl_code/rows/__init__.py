"""Rows of public data sets, read and checked."""

from prorl_code.rows.datasets import Format, detect, read_row
from prorl_code.rows.problem import Problem, Test

__all__ = ["Format", "Problem", "Test", "detect", "read_row"]
