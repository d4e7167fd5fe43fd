"""A function of single bytes, as a table of its 256 values."""

from tvm import te

__all__ = ["LOOKUP", "byte_table"]

#: The attribute of a kernel that reads one operand element by element, and another by its values.
LOOKUP = "lookup"


def byte_table(x: te.Tensor, table: te.Tensor) -> te.Tensor:
    """``table[x]`` for int8 or uint8 ``x`` of any shape; ``table[256]``, by the bits of a byte.

    :mod:`tvm_ext.executors.byte_tables` makes shuffles of the loads, where a CPU has these.
    """

    def element(*index):
        return table[x(*index).astype("uint8").astype("int32")]

    return te.compute(x.shape, element, "byte_table")
