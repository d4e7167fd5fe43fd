"""Compare a compiled model with a rival."""
