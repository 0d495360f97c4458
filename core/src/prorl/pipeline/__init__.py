"""Jobs and their three stages."""
