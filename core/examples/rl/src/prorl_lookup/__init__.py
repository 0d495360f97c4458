"""A task that a tiny model learns, a warm start for it, and a training loop that fits on a page."""
