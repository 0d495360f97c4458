"""The function that the comparing process runs."""

from __future__ import annotations

import pytest

from prorl_code.compare import grade, has_fraction

TOLERANCE = 1e-6


def compare(expected, output, *, kind="text", floats=None, whitespace="words", wrapped=False):
    floats = has_fraction(expected, value=kind == "value") if floats is None else floats
    tolerance = TOLERANCE if floats else None
    payload = {"kind": kind, "expected": expected, "output": output, "tolerance": tolerance}
    return grade({**payload, "whitespace": whitespace, "wrapped": wrapped})


@pytest.mark.parametrize(
    ("expected", "output", "floats", "same"),
    [
        ("1 2\n3", "1\n2 3\n\n", None, True),
        ("0.5", "0.50000001", None, True),
        ("0.5", "5e-1", None, True),
        ("1000000.0", "1000000.9", None, True),  # relative
        ("1000000.0", "1000002.0", None, False),
        ("0.0", "0.0000005", None, True),  # absolute
        ("0.5", "nan", None, False),
        ("0.5", "inf", None, False),
        ("nan", "nan", None, True),  # the same word
        ("0.5", "0x1p-1", None, False),
        ("0.5", "0_5.0", None, False),
        ("3", "3.0", False, False),
        ("3", "3.0", True, True),
        ("3", "3.0000001", True, False),
        ("3", "4", True, False),
        ("12345678901234567", "12345678901234568", True, False),
        ("12345678901234567", "12345678901234568.0", True, False),
        ("1.0", "1", None, True),
        ("1.0 a", "1.0 b", None, False),
        ("0.1", f"0.1{'0' * 1000}", None, False),
        ("1e999", "1e999", None, True),
        ("1e999", "2e999", None, False),
        ("v1.2", "v1.3", None, False),
    ],
)
def test_text(expected, output, floats, same):
    assert compare(expected, output, floats=floats)["same"] is same


def test_lines():
    assert compare("a b\nc\n", "a b  \nc\n\n\n", whitespace="lines")["same"]
    for output in ("a  b\nc", "a b c", " a b\nc", "a b\n\nc"):
        assert compare("a b\nc\n", output)["same"]
        assert not compare("a b\nc\n", output, whitespace="lines")["same"]


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ("[1, [2]]", "[1,[2]]", True),
        ("[1, 2]", "[2, 1]", False),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', True),
        ('{"a": 1}', '{"a": 1, "b": 2}', False),
        ("0.5", "0.5000001", True),
        ("[0.5, 3]", "[0.5, 3.0000001]", False),
        ("true", "1", True),
        ("3", '"3"', False),
        ("null", "0", False),
        ("0.5", "NaN", False),
        ("1.0", f"1{'0' * 400}", False),
        ("9" * 5000, "9" * 5000, True),
        ("9" * 5000, "9" * 4999 + "8", False),
        (f"[{'9' * 5000}]", f'["{"9" * 5000}"]', False),
        ("[]", "[" * 200_000, False),
        ("3", "", False),
        ("3", "{}", False),
    ],
)
def test_values(expected, output, same):
    assert compare(expected, output, kind="value")["same"] is same


def test_the_reason_is_short_and_names_the_place():
    assert compare("1 2 3", "1 9 3")["reason"] == 'word 2 is "9", not "2"'
    assert compare("1 2", "1")["reason"] == 'it ends after word 1, before "2"'
    assert compare("1", "1 2")["reason"] == 'it goes on after word 1, with "2"'
    assert len(compare("x" * 10_000, "y" * 10_000)["reason"]) < 200


def test_large_outputs_take_linear_time():
    """Minutes, if it were quadratic: the time limit of all tests is the measure."""
    text = " ".join(map(str, range(300_000)))
    assert compare(text, text, floats=True)["same"]
    assert not compare(text, "9" * len(text), floats=True)["same"]
