"""What the agent changed: taken from its sandbox, and put into another without what it had no business to change."""
