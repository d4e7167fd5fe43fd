"""Relax passes, one per file."""
