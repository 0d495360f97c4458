"""Mathematics for ProRL Agent."""
