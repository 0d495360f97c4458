"""Where the repository comes from, and the cache of what was made of it."""
