"""Compounds with several results: which matches they take, in which order the rest then runs."""

import pytest
from tvm import relax, te, tirx, topi
from tvm.relax.dpl import is_op, wildcard

from tests.extend.test_compound import check_answer, graph, selected
from tvm_ext import extend
from tvm_ext.errors import BuildError
from tvm_ext.export import export
from tvm_ext.export.check import run_example
from tvm_ext.extend import CCode, compound
from tvm_ext.extend.plugin import INTERACTIVE


@pytest.fixture(autouse=True)
def unload():
    """What a test declares is gone after it."""
    yield
    INTERACTIVE.unload()


def sum_and_relu(**options):
    """relu(a + b), and a + b."""
    a, b = wildcard(), wildcard()
    total = is_op("relax.add")(a, b)
    return compound(
        "acme.both",
        is_op("relax.nn.relu")(total),
        parts={"a": a, "b": b, "total": total},
        results=["total"],
        **options,
    )


def in_te(declared):
    @declared.compute
    def _(a, b):
        total = te.compute(a.shape, lambda *i: a(*i) + b(*i), "total")
        zero = tirx.const(0, a.dtype)
        return [te.compute(a.shape, lambda *i: te.max(total(*i), zero), "both"), total]


def in_c(declared):
    text = """#include <stdint.h>
    int32_t TVMX_KERNEL(const float *a, const float *b, float *y, float *total) {
      for (int i = 0; i < 15; i++) total[i] = a[i] + b[i], y[i] = total[i] > 0 ? total[i] : 0;
      return 0;
    }"""
    declared.emit(lambda a, b: CCode(text))


BODIES = [
    "s = Add(x, z) y = Relu(s) t = Exp(s)",  # read behind
    "s = Add(x, z) t = Exp(s) y = Relu(s)",  # read before the other result is there
    "s = Add(x, z) t = Sub(s, x) u = Exp(t) r = Relu(s) y = Mul(r, u)",  # both
    "s = Add(x, z) y = Relu(s)",  # not read at all
    "s = Add(x, z) y = Relu(s) t = Identity(s)",  # a result of the model
]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("kind", [None, in_te, in_c], ids=["operators", "te", "c"])
def test_an_inner_value_is_a_result(body, kind):
    declared = sum_and_relu()
    if kind:
        kind(declared)
    outputs = "float[n,m] y" + ", float[o,p] t" * ("t =" in body)
    model = graph(body, outputs=outputs)
    assert selected(model) == ["acme.both"]
    built = check_answer(model)
    assert "acme.both()" in built.profile().kernels[0].compounds
    assert set(built.profile().kernels[0].nodes) >= {"Add s"}


@pytest.mark.parametrize("kind", [None, in_te, in_c], ids=["operators", "te", "c"])
def test_every_pass_keeps_the_answer_and_c_programs_have_it(kind, tmp_path):
    declared = sum_and_relu()
    if kind:
        kind(declared)
    model = graph(BODIES[1], outputs="float[n,m] y, float[o,p] t")
    check_answer(model, verify="each-pass")
    run_example(export(model, tmp_path / "package"))


def test_what_depends_on_a_result_cannot_go_in():
    """relu(a + b) * c, where c is made from a + b."""
    a, b, c = (wildcard() for _ in range(3))
    total = is_op("relax.add")(a, b)
    product = is_op("relax.multiply")(is_op("relax.nn.relu")(total), c)
    parts = {"a": a, "b": b, "c": c, "total": total}
    compound("acme.product", product, parts=parts, results=["total"])
    model = graph("s = Add(x, z) e = Exp(s) r = Relu(s) y = Mul(r, e)")
    text = check_answer(model).sources()["select"]
    assert "acme.product: one of its operands depends on one of its results" in text
    assert not selected(model)


def test_two_matches_that_wait_for_each_other():
    """Either could be one kernel, both cannot: the later one is taken."""
    a, b, c = (wildcard() for _ in range(3))
    total = is_op("relax.add")(a, b)
    product = is_op("relax.multiply")(total, c)
    compound("acme.product", product, parts={"total": total}, results=["total"])
    model = graph("s = Add(x, z) t = Add(z, x) y = Mul(s, t) w = Mul(t, s)",
                  outputs="float[n,m] y, float[o,p] w")  # fmt: skip
    assert selected(model) == ["acme.product"]
    check_answer(model)


def test_a_split_has_a_result_per_field():
    x = wildcard()
    split = is_op("relax.split")(is_op("relax.tanh")(x))
    declared = compound("acme.split", split, parts={"x": x, "split": split})
    declared.attributes(lambda m: {"axis": int(m["split"].attrs.axis)})
    declared.compute(lambda x, *, axis: topi.split(topi.tanh(x), 2, axis))
    model = graph(
        "h = Tanh(x) a, b = Split <axis = 0, num_outputs = 2> (h) y = Mul(a, b)",
        "float[4,5] x",
    )
    assert selected(model) == ["acme.split"]
    assert check_answer(model).profile().kernels[0].compounds == ("acme.split(axis=0)",)


def test_a_function_says_which_results_there_are():
    """tanh(x), and x less that."""

    def find(graph, var):
        less = graph.call(var, "relax.subtract")
        tanh = None if less is None else graph.call(less.args[1], "relax.tanh")
        if tanh is None or not tanh.args[0].same_as(less.args[0]):
            return None
        inner = less.args[1], var
        return extend.Match(graph, var, inner, {"x": tanh.args[0]}, others=inner[:1])

    declared = compound("acme.rest", find, parts=["x"])

    @declared.compute
    def _(x):
        tanh = topi.tanh(x)
        return [topi.subtract(x, tanh), tanh]

    model = graph("t = Tanh(x) y = Sub(x, t)", "float[3,5] x", "float[n,k] y, float[o,p] t")
    assert selected(model) == ["acme.rest"]
    check_answer(model)


def test_symbolic_dims():
    in_te(sum_and_relu())
    inputs = "float[n,5] x, float[n,5] z"
    model = graph("s = Add(x, z) t = Exp(s) y = Relu(s)", inputs, "float[n,m] y, float[o,p] t")
    assert selected(model) == ["acme.both"]
    check_answer(model)


@pytest.mark.parametrize(
    "compute, given",
    [
        (lambda a, b: topi.add(a, b), r"float32\[3, 5\]"),
        (lambda a, b: [topi.add(a, b)] * 3, r"(float32\[3, 5\](, )?){3}"),
        (lambda a, b: [topi.add(a, b), topi.sum(a)], r"float32\[3, 5\], float32\[\]"),
    ],
)
def test_other_results_than_declared_are_refused(compute, given):
    sum_and_relu().compute(compute)
    message = rf"test_compound_results.py:\d+: gives {given}, what it .* float32\[3, 5\], float32"
    with pytest.raises(BuildError, match=message):
        check_answer(graph("s = Add(x, z) y = Relu(s)"))


def test_a_symbolic_shape_that_differs_is_refused():
    """n + 1 rows are no n rows; what cannot be told apart passes."""
    a, b = wildcard(), wildcard()
    pattern = is_op("relax.nn.relu")(is_op("relax.add")(a, b))
    declared = compound("acme.longer", pattern, parts={"a": a, "b": b})
    longer = lambda a, b: te.compute((a.shape[0] + 1, 5), lambda i, j: a[0, j])  # noqa: E731
    declared.compute(longer)
    model = graph("s = Add(x, z) y = Relu(s)", "float[n,5] x, float[n,5] z")
    with pytest.raises(BuildError, match=r"gives float32\[.*n \+ .*1.*, 5\], what it replaces"):
        check_answer(model)


def test_the_order_of_a_function_changes_only_where_it_must():
    from tvm_ext.passes.grouping import grouped

    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((3,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            a = builder.emit(relax.op.exp(x), "a")
            b = builder.emit(relax.op.exp(a), "b")
            c = builder.emit(relax.op.sin(x), "c")
            d = builder.emit(relax.op.add(a, c), "d")
            e = builder.emit_output(relax.op.add(d, b), "e")
        builder.emit_func_output(e)
    main = builder.get()["main"]

    def order(*groups):
        moved = grouped(main, groups)
        return moved and "".join(b.var.name for b in moved.body.blocks[0].bindings)

    a, b, c, d, e = (binding.var for binding in main.body.blocks[0].bindings)
    assert order() == "abcde"
    assert order((a, d)) == "cadbe"
    assert order((b, c)) == "abcde"
    assert order((a, e)) is None  # by way of b
    assert order((a, c), (b, d)) == "acbde"
    assert order((c, d), (a, b)) == "abcde"
