"""Measurements of the example models; each script prints a table and writes JSON and plots."""
