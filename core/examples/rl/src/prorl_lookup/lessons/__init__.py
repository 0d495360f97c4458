"""What the tiny model can be taught, a file each: a tool to call, sums, and small functions to write."""
