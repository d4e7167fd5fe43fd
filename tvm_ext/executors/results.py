"""Memory of large results, lent again once nobody refers to them.

Part of what loading a model needs: nothing here imports TVM.
"""

from __future__ import annotations

import sys
from math import prod

import numpy as np

from ..errors import RunError
from .plan import aligned_bytes

__all__ = ["MOST", "NO_MEMORY", "SPARE", "Results"]

#: Bytes that an address can tell apart; what overflows is more.
MOST = 1 << 48
NO_MEMORY = "the sizes given need more memory than any machine has"

#: Memory so many times too large for what is asked for is given back.
SPARE = 4

_LARGE = 128 << 10  # bytes from which on malloc asks the system
_KEPT = 2  # of each result: a decoder reads the last one while it writes the next


class Results:
    """Memory of one calling thread's large results.

    The system gives out new memory as pages of zeros, which takes longer than to write them.
    ``growing``: sizes differ from run to run, and a quarter more than asked for is taken.
    """

    def __init__(self, growing: bool = False) -> None:
        self._growing = growing
        self._lent: dict[int, list[np.ndarray]] = {}

    def array(self, number: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array for a result; what it holds is undefined.

        Raises:
            RunError: no machine has room for it.
        """
        size = prod(shape) * dtype.itemsize
        if size > MOST:
            raise RunError(NO_MEMORY)
        if size < _LARGE:
            return np.empty(shape, dtype)
        return self._memory(number, size)[:size].view(dtype).reshape(shape)

    def _memory(self, number: int, size: int) -> np.ndarray:
        kept = self._lent.setdefault(number, [])
        for memory in kept:
            fits = size <= memory.nbytes <= (SPARE * size if self._growing else size)
            # Two refer to it by themselves: ``memory``, and the call. Every view is one more.
            if fits and sys.getrefcount(memory.base) <= 2:
                return memory
        memory = aligned_bytes(size + (size // 4 if self._growing else 0))
        self._lent[number] = [memory, *kept][:_KEPT]
        return memory
