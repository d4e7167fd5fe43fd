"""Schedule rules for kernels that are printed as C: plain loops that a C compiler vectorises."""

from .plain import PlainLoops

__all__ = ["C_SOURCE"]

C_SOURCE = (PlainLoops(),)
