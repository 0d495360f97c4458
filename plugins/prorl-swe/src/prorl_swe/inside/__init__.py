"""What runs in sandboxes, by whatever Python is there: no imports from this package."""
