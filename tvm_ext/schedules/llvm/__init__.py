"""Schedule rules for llvm, one per file."""
