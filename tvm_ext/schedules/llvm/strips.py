"""Kernels that treat the images of a batch apart, cut to some of these images.

Before: ``y[n, c, h, w] = x[n, c, h, w] + b[c]``, where ``n`` is one of 8
After:  the same, where ``n`` is one of 2: four calls of it do what one did
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.ir import Range
from tvm.ir.expr import TensorRegion
from tvm.s_tir import SBlock

from .plain_blocks import accesses, is_number, plain_blocks, variables, with_buffers, with_parts
from .register_tiles import int64, nest, same, sequence

__all__ = ["ApartImages", "apart_images", "parts_of"]


@dataclass(frozen=True)
class ApartImages:
    """A kernel each of whose blocks walks the images of a batch, and treats them apart.

    Attributes:
        blocks: each with its axis that is the images.
        buffers: those that hold something of each image, along their first axis.
    """

    func: tirx.PrimFunc
    blocks: Sequence[tuple[SBlock, tirx.IterVar]]
    buffers: frozenset[tirx.Var]

    @property
    def images(self) -> int | tirx.Var:
        """How many a batch has."""
        extent = self.blocks[0][1].dom.extent
        return extent if isinstance(extent, tirx.Var) else int(extent)

    @property
    def reads(self) -> list[bool]:
        """Of each parameter but the results, whether it holds something of each image."""
        written = {region.source for block, _ in self.blocks for region in block.writes}
        params = [param for param in self.func.params if param not in written]
        return [param in self.buffers for param in params]

    def cut(self, images: int) -> tirx.PrimFunc:
        """The kernel for so many images."""
        new = {buffer: _cut(buffer, images) for buffer in self.buffers}

        def region(node: TensorRegion) -> TensorRegion:
            return tirx.BufferRegion(new[node.source], node.region)

        def told(part):
            return with_buffers(part, new, lambda _, indices: indices, region)

        nests = []
        for block, axis in self.blocks:
            fewer = tirx.IterVar(Range(int64(0), int64(images)), axis.var, axis.iter_type)
            axes = [fewer if other.same_as(axis) else other for other in block.iter_vars]
            nests.append(nest(with_parts(block, axes, told)))
        root = self.func.body.block
        allocated = [new.get(buffer, buffer) for buffer in root.alloc_buffers]
        body = SBlock([], [], [], root.name_hint, sequence(nests), None, allocated, [], {})
        params = [new.get(param, param) for param in self.func.params]
        realize = s_tir.SBlockRealize([], tirx.const(True), body)
        return tirx.PrimFunc(params, realize, self.func.ret_type, self.func.attrs)


def apart_images(func: tirx.PrimFunc) -> ApartImages | None:
    """``func``, where it treats apart what its results hold along their first axis; else None."""
    blocks = plain_blocks(func)
    if not blocks:
        return None
    root = func.body.block
    found: list[tuple[SBlock, tirx.IterVar]] = []
    places: dict[tirx.Var, set[bool]] = {}  # of a buffer: whether an access is to an image
    for block in blocks:
        axis = _images(block)
        if axis is None:
            return None
        found.append((block, axis))
        for buffer, indices in accesses(block):
            places.setdefault(buffer, set()).add(_is_at(indices, axis.var))
    of_images = frozenset(buffer for buffer, at in places.items() if at == {True})
    if any(len(at) > 1 for at in places.values()) or not of_images.issuperset(root.alloc_buffers):
        return None
    images, *others = [axis.dom.extent for _, axis in found]
    others += [buffer.ty.shape[0] for buffer in of_images]
    if not all(same(images, other) for other in others):
        return None
    apart = ApartImages(func, found, of_images)
    if isinstance(images, tirx.Var) and any(map(images.same_as, variables([apart.cut(1)]))):
        return None  # something else depends on how many there are
    return apart


def _images(block: SBlock) -> tirx.IterVar | None:
    """The axis along which ``block`` writes the first axis of its results, if that is all it is
    used for, and to read the first axes of others."""
    stores = [region.region[0].min for region in block.writes if region.region]
    axes = [a for a in block.iter_vars if all(a.var.same_as(first) for first in stores)]
    if len(axes) != 1 or len(stores) != len(block.writes) or not stores:
        return None
    (axis,) = axes
    uses = sum(var.same_as(axis.var) for var in variables([block.body, block.init]))
    plain = sum(_is_at(indices, axis.var) for _, indices in accesses(block))
    counted = isinstance(axis.dom.extent, tirx.IntImm | tirx.Var) and is_number(axis.dom.min, 0)
    return axis if counted and axis.iter_type == axis.DataPar and uses == plain else None


def _is_at(indices: Sequence[ir.Expr], axis: tirx.Var) -> bool:
    return bool(indices) and axis.same_as(indices[0])


def _cut(buffer: tirx.Var, images: int) -> tirx.Var:
    shape = [int64(images), *buffer.ty.shape[1:]]
    return tirx.decl_buffer(shape, str(buffer.ty.dtype.dtype), buffer.name, scope=buffer.scope())


def parts_of(given: Sequence[ir.Expr | int], wanted: Sequence[ir.Expr | int]) -> ir.Expr | int:
    """Into how many parts along its first axis a tensor of the dims ``given`` is cut for a kernel
    that takes the dims ``wanted``."""
    whole, part = next(zip(given, wanted, strict=True), (1, 1))
    if not isinstance(part, int | tirx.IntImm) or int(part) == 0:
        return 1
    if isinstance(whole, int | tirx.IntImm):
        return int(whole) // int(part)
    return whole  # one by one
