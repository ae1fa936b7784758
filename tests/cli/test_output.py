import io
import json

import pytest

from nsq_ha.cli.output import clean, print_json, print_table


@pytest.mark.parametrize("char", ["\n", "\r", "\t", "\x1b", "\x07", "\x00", "\x9b", "\u202e", "\u200b"])
def test_nothing_that_a_terminal_obeys_gets_through(char: str) -> None:
    result = clean(f"a{char}b")
    assert result.isprintable()
    assert result.startswith("a\\")
    assert result.endswith("b")


def test_tables_take_what_comes_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "count#"], [("[red]x[/red]\x1b[2J", 1234), (None, True)], title="[b]t[/b]")
    result = capsys.readouterr().out
    assert "[red]x[/red]\\x1b[2J" in result
    assert "[b]t[/b]" in result
    assert "1,234" in result
    assert "count " in result
    assert "#" not in result
    assert "yes" in result


def test_json_lines_hold_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"text": "\u009b2J \u202e \x1b \n \U000e0001 \u00fc"}
    print_json(value)
    printed = capsys.readouterr().out
    assert printed.removesuffix("\n").isprintable()
    assert "\u00fc" in printed
    assert json.loads(printed) == value


def test_json_has_no_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    """It used to be printed as other programs do not read it."""
    print_json({"headers": json.loads('{"a":1e999,"b":[-1e999,NaN]}'), "set": {1}})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "headers": {"a": "Infinity", "b": ["-Infinity", "NaN"]},
        "set": "{1}",
    }


def test_json_is_read_whatever_the_encoding_of_the_output_is(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.BytesIO()
    # As `__main__` sets it up where the locale says so.
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(output, "latin-1", "backslashreplace", line_buffering=True))
    value = {"text": "gr\u00fcn \U0001f600 \u6771\u4eac"}
    print_json(value)
    assert json.loads(output.getvalue()) == value
