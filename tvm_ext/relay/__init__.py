"""A Relay-compatible face on Relax."""
