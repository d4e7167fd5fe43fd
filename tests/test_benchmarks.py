"""The benchmark commands: what they write, and when they fail."""

import json
import os

import numpy as np
import onnx
import pytest
from onnx import parser

from benchmarks import cores, cpu, document, ship
from benchmarks.quantize import NotQuantizedError, quantized


def test_the_cpu_benchmark_keeps_ratios_and_checks_them(tmp_path, capsys):
    kept = tmp_path / "ratios.json"
    command = ["lstm", "--size", "small", "--engines", "onnxruntime", "--rounds", "1",
               "--threads", "1", "--out", str(tmp_path)]  # fmt: skip
    assert cpu.main([*command, "--keep", str(kept)]) == 0
    rows = json.loads((tmp_path / "cpu.json").read_text())["rows"]
    assert [row["engine"] for row in rows] == ["tvm_ext", "onnxruntime"]
    assert json.loads(kept.read_text()) == {"lstm": rows[1]["median"] / rows[0]["median"]}
    assert (tmp_path / "cpu.png").stat().st_size

    page = tmp_path / "docs" / "speed.md"
    runs = [str(tmp_path / "cpu.json")] * 2
    assert document.main([*runs, "--size", "small", "--output", str(page)]) == 0
    assert f"| lstm | {1e3 * rows[0]['median']:.3g} | " in page.read_text()
    assert "### lstm: " in page.read_text() and "| LSTM | " in page.read_text()

    kept.write_text(json.dumps({"lstm": 1e6}))
    assert cpu.main([*command, "--check", str(kept)]) == 1
    assert "kept 1000000.00x" in capsys.readouterr().out


def test_an_engine_that_differs_fails_the_benchmark(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(cpu.TOLERANCE, "fp32", -1.0)
    command = ["lstm", "--size", "small", "--engines", "onnxruntime", "--rounds", "1",
               "--threads", "1", "--out", str(tmp_path)]  # fmt: skip
    assert cpu.main(command) == 1
    assert "lstm: onnxruntime differs" in capsys.readouterr().out


@pytest.mark.parametrize("precision, written", [("int8", "QuantizeLinear"), ("fp16", "Cast")])
def test_all_engines_run_the_same_narrow_model(precision, written, tmp_path):
    command = ["lstm", "--size", "small", "--engines", "onnxruntime", "--rounds", "1",
               "--threads", "1", "--out", str(tmp_path), "--precision", precision]  # fmt: skip
    assert cpu.main(command) == 0
    rows = json.loads((tmp_path / "cpu.json").read_text())["rows"]
    assert [row["engine"] for row in rows] == ["tvm_ext", "onnxruntime"]
    nodes = onnx.load(tmp_path / "lstm_b1.onnx").graph.node
    assert any(node.op_type == written for node in nodes)


def test_a_model_without_8_bit_products_is_left_out(tmp_path, monkeypatch, capsys):
    graph = "<ir_version: 8, opset_import: ['' : 17]> g (float[4] x) => (float[4] y) {y = Relu(x)}"
    relu = parser.parse_model(graph.replace("'", '"'))
    feeds = {"x": np.ones(4, "float32")}
    with pytest.raises(NotQuantizedError, match="leaves all its products float32"):
        quantized(relu, feeds)
    monkeypatch.setattr(cpu, "to_onnx", lambda *_, **__: relu)
    monkeypatch.setattr(cpu, "quantized", lambda model, _: quantized(model, feeds))
    command = ["lstm", "--size", "small", "--precision", "int8", "--out", str(tmp_path)]
    assert cpu.main(command) == 1
    assert "lstm is left out" in capsys.readouterr().out


def test_the_costs_of_shipping(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ship, "LOADS", 1)
    command = ["mobilenetv2", "empty", "--size", "small", "--out", str(tmp_path)]
    assert ship.main(["all", *command]) == 0
    assert "empty parallel loop" in capsys.readouterr().out
    cost = json.loads((tmp_path / "mobilenetv2" / "cost.json").read_text())
    assert 10_000 < cost["library"] < cost["static"]["glibc"]
    assert set(cost["load"]) == {"tvm_ext", "onnxruntime"} and min(cost["load"].values()) > 0
    assert cost["live"] <= cost["arena"] < cost["planned"]
    assert ship.main(["table", "nothing"]) == 2


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_distance_of_two_cores(capsys, monkeypatch):
    assert cores.main(["--repetitions", "3", "--pause", "0"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert len(first.split()) == 3 and all(float(trip) > 1 for trip in first.split())
    assert rest[0].startswith("cores ")
    monkeypatch.setattr(cores, "round_trips", lambda *_: [90.0, 440.0, 100.0])
    assert cores.main([]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"{rest[0].partition(':')[0]}: 95 ns in 2 of 3",
        "440 ns in 1: compare times of one run and one state only",
    ]
