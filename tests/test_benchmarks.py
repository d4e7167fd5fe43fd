"""The benchmark commands: what they write, and when they fail."""

import json

from benchmarks import cpu, ship


def test_the_cpu_benchmark_keeps_ratios_and_checks_them(tmp_path, capsys):
    kept = tmp_path / "ratios.json"
    command = ["lstm", "--size", "small", "--engines", "onnxruntime", "--rounds", "1",
               "--threads", "1", "--out", str(tmp_path)]  # fmt: skip
    assert cpu.main([*command, "--keep", str(kept)]) == 0
    rows = json.loads((tmp_path / "cpu.json").read_text())
    assert [row["engine"] for row in rows] == ["tvm_ext", "onnxruntime"]
    assert json.loads(kept.read_text()) == {"lstm": rows[1]["median"] / rows[0]["median"]}
    assert (tmp_path / "cpu.png").stat().st_size

    kept.write_text(json.dumps({"lstm": 1e6}))
    assert cpu.main([*command, "--check", str(kept)]) == 1
    assert "kept 1000000.00x" in capsys.readouterr().out


def test_an_engine_that_differs_fails_the_benchmark(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(cpu.TOLERANCE, "fp32", -1.0)
    command = ["lstm", "--size", "small", "--engines", "onnxruntime", "--rounds", "1",
               "--threads", "1", "--out", str(tmp_path)]  # fmt: skip
    assert cpu.main(command) == 1
    assert "lstm: onnxruntime differs" in capsys.readouterr().out


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
