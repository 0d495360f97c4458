"""Programming problems for ProRL Agent."""
