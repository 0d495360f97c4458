"""A confined grader computes, reads and imports. All else is refused, whoever inside the process asks for it."""

import pytest

LONG = 60.0
NEVER = ("eval", "exec", "sympy", "ast", "write", "create", "remove", "system", "popen", "fork", "socket")


async def test_what_a_confined_grader_may_not_do(pools, tmp_path):
    pytest.importorskip("sympy", reason="sympy evaluates text: pip install sympy")
    file = tmp_path / "made"
    async with pools("grader_samples:doors", size=1, confined=True) as pool:
        for way in NEVER:
            tried = await pool.grade({"do": way, "file": str(file)}, LONG)
            assert tried["refused"], way
            assert tried["refused"].startswith("a confined grader may not do this: "), way
    assert not file.exists()


async def test_what_it_may_do(pools):
    async with pools("grader_samples:doors", size=1, confined=True) as pool:
        for way in ("read", "import", "module", "regex"):
            assert await pool.grade({"do": way}, LONG) == {"refused": None}, way


async def test_others_are_free(pools, tmp_path):
    file = tmp_path / "made"
    async with pools("grader_samples:doors", size=1) as pool:
        for way in ("eval", "write", "popen", "socket"):
            assert await pool.grade({"do": way, "file": str(file)}, LONG) == {"refused": None}, way
    assert file.exists()


async def test_what_it_raises_is_told_with_its_lines(pools):
    async with pools("grader_samples:misbehave", size=1, confined=True) as pool:
        with pytest.raises(Exception, match="on purpose") as caught:
            await pool.grade({"do": "raise"}, LONG)
    assert any("grader_samples.py" in note for note in caught.value.__notes__)


async def test_a_named_function_may_fill_in_its_templates(pools):
    async with pools(
        "grader_samples:doors", size=1, confined=True, may_compile=["grader_samples:template", "x:y"]
    ) as pool:
        assert await pool.grade({"do": "template"}, LONG) == {"refused": None}
        assert (await pool.grade({"do": "eval"}, LONG))["refused"]
    with pytest.raises(ValueError, match="confined"):
        pools("grader_samples:doors", may_compile=["x:y"])
