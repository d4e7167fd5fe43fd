"""What each operator computes, in TE: no target, no schedule."""
