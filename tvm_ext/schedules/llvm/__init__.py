"""Schedule rules for llvm, one per file."""

from .conv2d import Conv2dBlocked, DepthwiseBlocked
from .matmul import MatmulTiled

__all__ = ["LLVM_CONTRACTIONS"]

#: Convolutions and matrix products in the forms that our passes give them.
LLVM_CONTRACTIONS = (Conv2dBlocked(), DepthwiseBlocked(), MatmulTiled())
