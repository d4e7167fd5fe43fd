"""Tensors of strings, against onnxruntime."""

import pickle

import numpy as np
import onnxruntime
import pytest
from onnx import parser

from tests.uses import record
from tvm_ext import InferenceSession, convert_and_build, load
from tvm_ext.errors import ConversionError, InputError, OptionError, RunError
from tvm_ext.export import export

HEAD = '<ir_version: 8, opset_import: ["" : 20, "ai.onnx.ml" : 3]>\n'
WORDS = np.array(["b", "", "Zürich", "a b  c", "b", "été"], object)


def texts(*values):
    return np.array(values, object)


def check(text, *many, level=3, head=HEAD):
    """Run by us and by onnxruntime, on each of several feeds."""
    model = parser.parse_model(head + text)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    compiled = convert_and_build(model, "llvm", opt_level=level)
    for feeds in many:
        for got, want in zip(compiled.run(None, feeds), session.run(None, feeds), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_array_equal(got, want)
    record(model)
    return compiled


MOVES = """g (string[n] x, string[n] y, int64[k] i, bool[n] c) => (
      string[k] a, string[m] b, string[n] w, bool[n] e, string[p] t, int64[1] s, string[q] d) {
  own = Constant<value = string[2] {"own", "a b  c"}>()
  a = Gather(x, i)
  b = Concat<axis = 0>(x, own)
  w = Where(c, x, y)
  e = Equal(x, y)
  two = Constant<value = int64[1] {2}>()
  t = Tile(x, two)
  s = Shape(x)
  pads = Constant<value = int64[2] {1, 2}>()
  d = Pad(x, pads)
}"""


@pytest.mark.parametrize("level", [0, 3])
def test_strings_move_and_compare_as_numbers_do(level):
    feeds = {
        "x": WORDS,
        "y": WORDS[::-1].copy(),
        "i": np.array([5, 0, -1]),
        "c": np.array([1, 0, 1, 0, 1, 0], bool),
    }
    small = {"x": texts("new"), "y": texts("new"), "i": np.array([0]), "c": np.array([True])}
    # onnxruntime pads no strings; what it would give is plain.
    text = MOVES.replace(", string[q] d)", ")").replace("d = Pad(x, pads)", "")
    check(text, feeds, small, level=level)
    padded = convert_and_build(parser.parse_model(HEAD + MOVES), "llvm", opt_level=0)
    assert padded.run(["d"], small)[0].tolist() == ["", "new", "", ""]


def test_static_strings_need_no_vm():
    """Where strings only move, and keys are constants, all of it is compiled."""
    compiled = check(
        """g (string[3] x) => (int64[3] y, string[3] z) {
      y = ai.onnx.ml.LabelEncoder<keys_strings = ["b", "é", "b"], values_int64s = [7, 8, 9],
                                  default_int64 = -5>(x)
      z = ai.onnx.ml.LabelEncoder<keys_int64s = [7, 8], values_strings = ["b", "new"],
                                  default_string = "none">(y)
    }""",
        {"x": texts("é", "b", "zz")},
    )
    assert compiled.memory is not None


def test_computed_strings():
    check(
        """g (string[a,1] x, string[b] y) => (string[a,b] c, string[a,b,m] p, int64[a,b] n,
                                               string[a,b,q] s, int64[a,b] k) {
      c = StringConcat(x, y)
      p, n = StringSplit<maxsplit = 1>(c)
      s, k = StringSplit<delimiter = "b">(c)
    }""",
        {"x": texts("a b", "", "  é c ").reshape(3, 1), "y": texts(" x y z", "b")},
        {"x": texts("").reshape(1, 1), "y": texts("q")},
    )


@pytest.mark.parametrize("case", ["LOWER", "UPPER", "NONE"])
@pytest.mark.parametrize("sensitive", [0, 1])
def test_normalizer(case, sensitive):
    check(
        f"""g (string[n] x) => (string[m] y) {{
      y = StringNormalizer<locale = "C", case_change_action = "{case}", is_case_sensitive =
          {sensitive}, stopwords = ["Monday", "tuesday"]>(x)
    }}""",
        {"x": texts("monday", "Monday", "Tuesday", "WedNesday", "tuesday")},
        {"x": texts("Monday")},
        level=0,
    )


def test_regular_expressions_of_re2():
    check(
        r"""g (string[n,2] x) => (bool[n,2] y) {
      y = RegexFullMatch<pattern = "(?i)[a-z0-9._]+@[a-z]+\\.(com|org)">(x)
    }""",
        {"x": texts("a@b.com", "A_1@B.ORG", "a@b.com ", "").reshape(2, 2)},
    )
    bad = parser.parse_model(
        HEAD + 'g (string[1] x) => (bool[1] y) { y = RegexFullMatch<pattern = "(?=a)">(x) }'
    )
    with pytest.raises(ConversionError, match=r"RegexFullMatch-20 'y' .*pattern"):
        convert_and_build(bad, "llvm", opt_level=0)


def test_casts():
    floats = np.array([1.5, -0.0, 1e10, 1 / 3, 1e-7, np.nan, np.inf, -np.inf])
    check(
        """g (double[n] d, float[n] f, int64[n] i, string[k] t, string[k] u) => (
          string[n] a, string[n] b, string[n] c, double[k] x, float[k] y, int32[k] z) {
      a = Cast<to = 8>(d)
      b = Cast<to = 8>(f)
      c = Cast<to = 8>(i)
      x = Cast<to = 11>(t)
      y = Cast<to = 1>(t)
      z = Cast<to = 6>(u)
    }""",
        {
            "d": floats,
            "f": floats.astype("float32"),
            "i": np.arange(8) * -(10**12),
            "t": texts("1.25", "-3e-2", "7"),
            "u": texts("12", "-7", "0"),
        },
    )
    narrow = parser.parse_model(HEAD + "g (string[n] x) => (int8[n] y) { y = Cast<to = 3>(x) }")
    compiled = convert_and_build(narrow, "llvm", opt_level=0)
    assert compiled(texts("127")).tolist() == [127]
    for wrong in ("128", "1.5", "1_0", "x"):
        with pytest.raises(RunError, match=rf"Cast-\d+ 'y' .*: '{wrong}' is no int8"):
            compiled(texts(wrong))


@pytest.mark.parametrize("is_sorted", [0, 1])
def test_unique(is_sorted):
    check(
        f"""g (string[n] x) => (string[m] y, int64[m] first, int64[n] inverse, int64[m] counts) {{
      y, first, inverse, counts = Unique<sorted = {is_sorted}>(x)
    }}""",
        {"x": WORDS},
        {"x": texts("q")},
        level=0,
    )


def test_features_made_of_strings():
    check(
        """g (string[3] x) => (int64[3] c, float[3,3] h, float[4] w) {
      c = ai.onnx.ml.CategoryMapper<cats_strings = ["b", "a"], cats_int64s = [4, 5],
                                    default_int64 = -2>(x)
      h = ai.onnx.ml.OneHotEncoder<cats_strings = ["a", "b", "é"]>(x)
      w = TfIdfVectorizer<min_gram_length = 1, max_gram_length = 2, max_skip_count = 1,
        mode = "TF", ngram_counts = [0, 2], ngram_indexes = [0, 1, 2, 3],
        pool_strings = ["a", "é", "a", "b", "é", "a"]>(x)
    }""",
        {"x": texts("a", "b", "é")},
        {"x": texts("é", "a", "a")},
    )


def test_labels_numbered_from_0():
    check(
        """g (string[n] x, int64[k] i) => (int64[n] c, string[k] s) {
      c = ai.onnx.ml.LabelEncoder<classes_strings = ["b", "é"], default_int64 = -2>(x)
      s = ai.onnx.ml.LabelEncoder<classes_strings = ["b", "é"], default_string = "?">(i)
    }""",
        {"x": texts("é", "a", "b"), "i": np.array([1, 2, -1, 0])},
        head=HEAD.replace('"ai.onnx.ml" : 3', '"ai.onnx.ml" : 1'),
    )


def test_labels_of_classes():
    head = HEAD.replace('"" : 20', '"" : 17')
    check(
        """g (float[n,2] x) => (string[n] label, float[n,3] scores) {
      label, scores = ai.onnx.ml.LinearClassifier<coefficients = [1.0, 0.0, 0.0, 1.0, -1.0, -1.0],
        intercepts = [0.0, 0.0, 0.5], classlabels_strings = ["x", "y", "zé"]>(x)
    }""",
        {"x": np.array([[1, 2], [3, 1], [-1, -1]], "float32")},
        head=head,
    )


def test_strings_in_loops_branches_and_sequences():
    model = parser.parse_model(
        HEAD
        + """g (string[n] x, int64 trips, bool c) => (
          string[n] y, string[m,n] all, string[n] z, seq(string[k]) s) {
      yes = Constant<value = bool {1}>()
      dot = Constant<value_string = ".">()
      y, all = Loop(trips, yes, x) <body = b (int64 i, bool go, string[q] t) =>
            (bool on, string[q] u, string[q] v) {
          on = Identity(go)
          u = StringConcat(t, dot)
          v = Identity(u)
      }>
      z = If(c) <then_branch = d () => (string[e] f) { f = Identity(x) },
                 else_branch = h () => (string[j] l) { l = StringConcat(x, x) }>
      s = SequenceConstruct(x, z)
    }"""
    )
    compiled = convert_and_build(model, "llvm")
    y, every, z, s = compiled(texts("a", "é"), np.array(2), np.array(False))
    assert y.tolist() == ["a..", "é.."]
    assert every.tolist() == [["a.", "é."], ["a..", "é.."]]
    assert z.tolist() == ["aa", "éé"]
    assert [part.tolist() for part in s] == [["a", "é"], ["aa", "éé"]]


def test_runs_share_no_strings(tmp_path):
    """What one run numbers is forgotten; saved and pickled models know their own strings."""
    compiled = convert_and_build(
        parser.parse_model(
            HEAD
            + """g (string[n] x) => (bool[n] e, string[m] y) {
      own = Constant<value = string[2] {"own", "é"}>()
      e = Equal(x, own)
      y = StringConcat(x, own)
    }"""
        ),
        "llvm",
        opt_level=0,
    )
    compiled.save(tmp_path / "model")
    for model in (compiled, load(tmp_path / "model"), pickle.loads(pickle.dumps(compiled))):
        for first in ("own", "other"):
            equal, joined = model(texts(first, "é"))
            assert equal.tolist() == [first == "own", True]
            assert joined.tolist() == [first + "own", "éé"]
        assert len(model._strings.texts) == 3
        assert [str(info) for info in model.inputs] == ["x: string[n]"]


def test_what_strings_may_come_as():
    model = parser.parse_model(HEAD + "g (string[n] x) => (string[n] y) { y = Identity(x) }")
    compiled = convert_and_build(model, "llvm", opt_level=0)
    for given in (["é", "b"], np.array(["é", "b"]), texts("é".encode(), b"b")):
        result = compiled(given).tolist()
        assert result == ["é", "b"]
        assert set(map(type, result)) == {str}
    assert compiled(["a\0", "b"]).tolist() == ["a\0", "b"]
    with pytest.raises(InputError, match=r"'x' cannot be read as an array.*utf-8"):
        compiled([b"\xff"])
    with pytest.raises(InputError, match="'x' has a mask"):
        compiled(np.ma.array(["a", "b"], mask=[True, False]))
    with pytest.raises(InputError, match="needs strings, got int64"):
        compiled(np.arange(3))
    with pytest.raises(InputError, match="needs strings, got one that is float"):
        compiled(texts("a", float("nan")))
    with pytest.raises(InputError, match="needs rank 1"):
        compiled("a")
    with pytest.raises(InputError, match="'x' holds strings, of which none are made up"):
        compiled.benchmark()
    with pytest.raises(OptionError, match=r"not y: string\[n\]"):
        export(compiled, "package")
    session = InferenceSession(model, opt_level=0)
    assert session.get_inputs()[0].type == "tensor(string)"


@pytest.mark.parametrize(
    "attributes",
    [
        'separators = [" "], mark = 0, mincharnum = 1',
        'separators = [",", " +"], mark = 1, mincharnum = 2',
        'separators = [""], mark = 0, mincharnum = 1',
        'tokenexp = "[a-zA-Z0-9_]+|é", mark = 1, mincharnum = 1',
    ],
)
def test_tokens(attributes):
    head = '<ir_version: 8, opset_import: ["" : 20, "com.microsoft" : 1]>\n'
    text = """g (string[n, m] x) => (string[n, m, t] y) {
      y = com.microsoft.Tokenizer<pad_value = "#", ATTRIBUTES>(x) }"""
    many = [{"x": WORDS.reshape(2, 3)}, {"x": texts("one,two  three", "é4 x").reshape(1, 2)},
            {"x": texts("").reshape(1, 1)}]  # fmt: skip
    check(text.replace("ATTRIBUTES", attributes), *many, head=head)
