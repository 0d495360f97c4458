"""Repairing real repositories: the SWE domain of ProRL Agent."""
