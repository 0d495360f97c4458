"""The hidden tests, run in a sandbox that the agent never touched."""
