"""Text to ids and back: from a folder, or from whichever engine is there to be asked."""
