"""What a grader process runs: is this answer the gold one? ``ladder:grade`` is the way in."""
