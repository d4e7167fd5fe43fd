"""Converter for what com.microsoft asks of the elements of tensors."""

from functools import reduce

import numpy as np
from tvm import relax

from ..microsoft import microsoft
from .logical import is_inf, is_nan


@microsoft("IsAllFinite")
def is_all_finite(bb, *tensors, isinf_only=0, isnan_only=0):
    """Whether no element is infinite, or NaN: a scalar."""
    if isinf_only and isnan_only:
        raise ValueError("isinf_only and isnan_only")
    tests = ([] if isnan_only else [is_inf]) + ([] if isinf_only else [is_nan])
    worst = [
        bb.emit(relax.op.sum(bb.emit(relax.op.astype(test(bb, x), "int64")), None))
        for x in tensors
        for test in tests
    ]
    total = reduce(lambda a, b: bb.emit(relax.op.add(a, b)), worst)
    return bb.emit(relax.op.equal(total, bb.const(np.array(0))))
