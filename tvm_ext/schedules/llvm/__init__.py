"""Schedule rules for llvm, one pattern per file, most specific first."""

from .attention import AttentionTiled
from .attention_symbolic import AttentionSymbolic
from .conv2d import Conv2dBlocked, DepthwiseBlocked
from .conv2d_symbolic import Conv2dSymbolic
from .conv2d_tiles import Conv2dTiles
from .elementwise import Elementwise
from .expanded_depthwise import ExpandedDepthwise
from .fallback import BlockByBlock, OuterParallel
from .integer_conv2d import Conv2dInteger
from .integer_matmul import MatmulInteger
from .matmul import MatmulTiled
from .matmul_blocks import MatmulBlocks
from .matmul_dots import MatmulDots
from .matmul_loops import MatmulLoops
from .matmul_rows import MatmulRows
from .matmul_tiles import MatmulTiles
from .merged_axes import MergedAxes
from .pool import PoolBlocked
from .recurrent import Recurrent
from .row_norm import RowNorm
from .window_rows import WindowRows
from .winograd import Conv2dWinograd
from .winograd_symbolic import Conv2dWinogradSymbolic

__all__ = ["LLVM_CONTRACTIONS", "LLVM_GENERIC", "LLVM_SIMPLE"]

#: Convolutions, pools and matrix products in the forms that our passes give them.
LLVM_CONTRACTIONS = (
    AttentionTiled(),
    AttentionSymbolic(),
    Conv2dTiles(),
    Conv2dBlocked(),
    MergedAxes(Conv2dSymbolic()),
    Conv2dSymbolic(),
    Conv2dInteger(),
    Conv2dWinograd(),
    Conv2dWinogradSymbolic(),
    DepthwiseBlocked(),
    ExpandedDepthwise(),
    MatmulInteger(),
    MatmulTiled(),
    MatmulBlocks(),
    MatmulTiles(),
    MatmulRows(),
    MatmulLoops(),
    MatmulDots(),
    PoolBlocked(),
)

#: Every other kernel.
LLVM_GENERIC = (
    Recurrent(),
    MergedAxes(Elementwise()),
    Elementwise(),
    WindowRows(),
    MergedAxes(RowNorm()),
    RowNorm(),
    MergedAxes(BlockByBlock()),
    BlockByBlock(),
    OuterParallel(),
)

#: Each block by itself: opt_level 0.
LLVM_SIMPLE = (Recurrent(), Elementwise(), BlockByBlock(), OuterParallel())
