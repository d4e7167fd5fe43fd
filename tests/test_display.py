"""Results as text, as HTML, as JSON: names are shown as they are, numbers are never lost."""

import html
import io
import json
import math
from dataclasses import dataclass
from html.parser import HTMLParser

import pytest
import rich
from rich.console import Console

from tvm_ext.display import Shown, as_json, table
from tvm_ext.inspect import Inspection, Port
from tvm_ext.model import RunTimes
from tvm_ext.profile import KernelTime, Profile
from tvm_ext.trace import PassTime, PassTimes

HOSTILE = "[red]a[/] <script>&\"' :smile: [/]"
VOID = {"br", "meta", "hr"}


@dataclass(frozen=True)
class Rows(Shown):
    name: str
    number: float

    def __rich__(self):
        rows = [(self.name, f"{self.number:.6f}")]
        return table(("name", "us"), rows, numbers=["us"], title=self.name, caption=self.name)


RESULTS = [
    Rows(HOSTILE, 1.0),
    Profile((KernelTime(HOSTILE, (HOSTILE,), 1e-6, 3, None),), 1, None),
    PassTimes((PassTime("import", HOSTILE, 1.0),)),
]


class Balanced(HTMLParser):
    """Collects the tags and the text; every tag that opens must close."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], set(), ""

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("result", RESULTS, ids=lambda r: type(r).__name__)
def test_names_are_not_markup(result):
    assert HOSTILE in str(result)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(result)
    assert HOSTILE in console.export_text()


TEXTS = [
    Inspection((Port(HOSTILE, "float[n]"),), (), {HOSTILE: 1}, {}, 0, ()),
    RunTimes((0.25,), 1),
]


@pytest.mark.parametrize("result", TEXTS, ids=lambda r: type(r).__name__)
def test_results_that_are_text_have_html_too(result):
    parser = Balanced()
    parser.feed(result._repr_html_())
    assert not parser.open
    assert parser.seen <= {"pre", "code", "span"}
    assert str(result).split()[-1] in parser.text


@pytest.mark.parametrize("result", RESULTS, ids=lambda r: type(r).__name__)
def test_html_is_balanced_and_escaped(result):
    parser = Balanced()
    parser.feed(result._repr_html_())
    parser.close()
    assert not parser.open
    assert "script" not in parser.seen
    assert html.unescape(HOSTILE) in parser.text


def test_a_narrow_terminal_gets_narrow_tables_with_whole_numbers(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = str(Rows("n" * 300, 123456.789)).splitlines()
    assert max(map(len, lines)) <= 80
    monkeypatch.setenv("COLUMNS", "10")
    assert "123456.789" in str(Rows("n" * 300, 123456.789))


def test_json_is_strict():
    def refuse(constant):
        raise AssertionError(constant)

    text = Rows("x", math.inf).to_json()
    assert json.loads(text, parse_constant=refuse) == {"name": "x", "number": "Infinity"}
    data = {"a": [math.nan, (-math.inf, 1.5)], "b": None}
    read = json.loads(as_json(data), parse_constant=refuse)
    assert read == {"a": ["NaN", ["-Infinity", 1.5]], "b": None}
    assert math.isinf(float(read["a"][1][0]))  # as Python and JavaScript read the strings


def test_rich_prints_results(capsys):
    rich.print(Rows("plain", 2.0))
    assert "2.000000" in capsys.readouterr().out
