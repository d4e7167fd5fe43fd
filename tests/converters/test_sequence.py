"""Sequences and optionals of static structure, against onnxruntime."""

import numpy as np
import onnxruntime
import pytest
from onnx import parser

from tests.oracle import check_model
from tvm_ext import convert_and_build
from tvm_ext.errors import ModelError

X = np.arange(12, dtype="float32").reshape(4, 3)
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def check(text, feeds):
    model = parser.parse_model(HEAD + text)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    check_model(model, feeds, expected=session.run(None, feeds))


def test_construct_insert_erase_at():
    check(
        """g (float[4,3] x, int64 k) => (float[4,3] y, float[4,3] z, int64 n) {
      two = Constant<value = int64 {-2}>()
      doubled = Add(x, x)
      tripled = Add(doubled, x)
      s = SequenceConstruct(x, doubled)
      t = SequenceInsert(s, tripled)
      y = SequenceAt(t, k)
      u = SequenceErase(t, two)
      z = SequenceAt(u, two)
      n = SequenceLength(t)
    }""",
        {"x": X, "k": np.array(2)},
    )


def test_split_and_concat():
    check(
        """g (float[4,3] x) => (float[m,3] y, float[a,b] z, int64 n) {
      three = Constant<value = int64 {3}>()
      s = SplitToSequence<axis = 0>(x, three)
      y = ConcatFromSequence<axis = 0>(s)
      t = SplitToSequence<axis = 1, keepdims = 0>(x)
      z = ConcatFromSequence<axis = 1, new_axis = 1>(t)
      n = SequenceLength(s)
    }""",
        {"x": X},
    )


def test_optional_with_an_element():
    check(
        """g (float[4,3] x) => (float[4,3] y, bool b) {
      o = Optional(x)
      b = OptionalHasElement(o)
      y = OptionalGetElement(o)
    }""",
        {"x": X},
    )


def test_a_sequence_cannot_leave_the_model():
    model = parser.parse_model(
        HEAD
        + """g (float[4,3] x) => (seq(float[4,3]) s) {
      s = SequenceConstruct(x, x)
    }"""
    )
    with pytest.raises(ModelError, match="only tensors"):
        convert_and_build(model, "llvm", opt_level=0)
