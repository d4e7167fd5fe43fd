"""Reversible changes to other packages."""
