"""Schedule rules for cuda, one per file, and the two ordered lists of them.

Every list ends in a rule that takes any kernel, so a model always builds. A rule that fails, or
whose kernel does not compile within the limits of a GPU, gives way to the next; the logger
``tvm_ext.schedules.cuda`` says at DEBUG which rule took each kernel and why others did not.
"""

from tvm.s_tir import dlight as dl

from .checked import Checked
from .column_sums import ColumnSums
from .element_threads import ElementThreads
from .host_steps import HostSteps
from .row_reduction import RowReduction
from .single_thread import OwnThreads, SingleThread
from .tiled_matmul import TiledMatmul
from .tiled_transpose import TiledTranspose

__all__ = [
    "CUDA",
    "SAFE",
    "Checked",
    "ColumnSums",
    "ElementThreads",
    "HostSteps",
    "OwnThreads",
    "RowReduction",
    "SingleThread",
    "TiledMatmul",
    "TiledTranspose",
]

#: One launch per block of the kernel, nothing fused: opt levels 0 and 1.
SAFE = (
    OwnThreads(),
    Checked(ElementThreads(inline=False), inlines=False),
    Checked(HostSteps(), inlines=False),
    SingleThread(),
)

#: Every rule, most specific first: opt levels 2 and 3.
CUDA = (
    OwnThreads(),
    Checked(TiledMatmul()),
    Checked(TiledTranspose()),
    Checked(RowReduction()),
    Checked(ElementThreads(longest=64)),  # before dlight gives a block of threads to a window
    Checked(ColumnSums()),
    Checked(dl.gpu.Reduction()),
    Checked(dl.gpu.GeneralReduction()),
    Checked(ElementThreads()),
    *SAFE[1:],
)
