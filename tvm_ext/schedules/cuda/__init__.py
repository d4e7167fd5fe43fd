"""Schedule rules for cuda, one per file."""
