"""What runs a scheduled module."""

from . import threads  # noqa: F401  before TVM's thread pool starts; nothing else: see static.py
