"""Running untrusted programs on tests, and saying how they did."""
