"""What runs a scheduled module."""
