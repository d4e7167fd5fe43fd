"""Converters for the random operators: reproducible, without state.

A node draws the same values in every run: those that follow from its seed, or, without one, from
the name of its output, so that nodes without a seed differ from each other.
"""

from zlib import crc32

import numpy as np

from tvm_ext.ops import random as ops

from ..table import converter
from .constant import numpy_name


@converter("RandomUniform", 1, 22)
def random_uniform(bb, *, shape, dtype=1, high=1.0, low=0.0, seed=None):
    return bb.emit_te(ops.uniform, shape, low, high, numpy_name(dtype), _seed(bb, seed))


@converter("RandomUniformLike", 1, 22)
def random_uniform_like(bb, x, *, dtype=None, high=1.0, low=0.0, seed=None):
    return bb.emit_te(ops.uniform, bb.shape(x), low, high, _like(bb, x, dtype), _seed(bb, seed))


@converter("RandomNormal", 1, 22)
def random_normal(bb, *, shape, dtype=1, mean=0.0, scale=1.0, seed=None):
    return bb.emit_te(ops.normal, shape, mean, scale, numpy_name(dtype), _seed(bb, seed))


@converter("RandomNormalLike", 1, 22)
def random_normal_like(bb, x, *, dtype=None, mean=0.0, scale=1.0, seed=None):
    return bb.emit_te(ops.normal, bb.shape(x), mean, scale, _like(bb, x, dtype), _seed(bb, seed))


@converter("Bernoulli", 15, 22)
def bernoulli(bb, x, *, dtype=None, seed=None):
    return bb.emit_te(ops.bernoulli, x, _like(bb, x, dtype), _seed(bb, seed))


@converter("Multinomial", 7, 22)
def multinomial(bb, x, *, dtype=6, sample_size=1, seed=None):
    return bb.emit_te(ops.multinomial, x, sample_size, numpy_name(dtype), _seed(bb, seed))


def _like(bb, x, dtype):
    return bb.dtype(x) if dtype is None else numpy_name(dtype)


def _seed(bb, seed):
    """An integer: the bits of the attribute, which is a float, above those of a default."""
    if seed is None:
        return crc32((bb.node.outputs[0].name or "").encode())
    return (int(np.float32(seed).view("uint32")) + 1) << 32
