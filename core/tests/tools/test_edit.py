"""The file editor as a model sees it."""

from __future__ import annotations

import re

import pytest

from prorl.tools.edit import StrReplaceEditor
from prorl.tools.execute import ExecuteBash

editor, shell = StrReplaceEditor(), ExecuteBash()


@pytest.fixture
def edit(context):
    async def call(command: str, path: str, **arguments):
        return await editor.call({"command": command, "path": path, **arguments}, context)

    return call


@pytest.fixture
def bash(context):
    async def run(command: str) -> str:
        seen = await shell.call({"command": command}, context)
        return seen.text.rpartition("[Current working")[0]

    return run


async def test_create_view_replace_insert_undo(edit, bash, context) -> None:
    path = f"{context.sandbox.workdir}/new/a.py"
    assert (await edit("create", path, file_text="one\ntwo\nthree\n")).text == f"File created successfully at: {path}"
    viewed = await edit("view", path)
    assert viewed.text == f"Here's the result of running `cat -n` on {path}:\n     1\tone\n     2\ttwo\n     3\tthree"
    replaced = await edit("str_replace", path, old_str="two\n", new_str="2\n2b\n")
    assert replaced.text.startswith(f"The file {path} has been edited.")
    assert "     2\t2\n     3\t2b\n     4\tthree" in replaced.text
    inserted = await edit("insert", path, insert_line=0, new_str="zero")
    assert "     1\tzero\n     2\tone" in inserted.text
    assert await bash(f"cat {path}") == "zero\none\n2\n2b\nthree\n"
    for content in ("one\n2\n2b\nthree\n", "one\ntwo\nthree\n"):
        assert "undone successfully" in (await edit("undo_edit", path)).text
        assert await bash(f"cat {path}") == content
    assert "gone again" in (await edit("undo_edit", path)).text
    assert (await edit("view", path)).is_error
    assert "No edit history" in (await edit("undo_edit", path)).text


@pytest.mark.parametrize(
    ("line", "text", "result"),
    [(2, "x", "a\nb\nx\n"), (1, "x\ny\n", "a\nx\ny\nb\n"), (0, "", "\na\nb\n")],
)
async def test_insert(edit, bash, line: int, text: str, result: str) -> None:
    await bash("printf 'a\\nb\\n' > f")
    assert not (await edit("insert", "f", insert_line=line, new_str=text)).is_error
    assert await bash("cat f; echo END") == f"{result}END\n"


async def test_insert_after_a_last_line_without_an_end(edit, bash) -> None:
    await bash("printf 'a\\nb' > f")
    await edit("insert", "f", insert_line=2, new_str="c")
    assert await bash("cat f; echo END") == "a\nb\ncEND\n"


async def test_replace_by_nothing_and_what_is_not_unique(edit, bash) -> None:
    await bash("printf 'a b a\\nb\\na\\n' > f")
    seen = await edit("str_replace", "f", old_str="a", new_str="c")
    assert seen.is_error
    assert "Multiple occurrences of old_str in lines [1, 1, 3]" in seen.text
    seen = await edit("str_replace", "f", old_str="missing", new_str="c")
    assert "did not appear verbatim" in seen.text
    assert not (await edit("str_replace", "f", old_str="b\na\n")).is_error
    assert await bash("cat f") == "a b a\n"


async def test_wrong_white_space_is_told_with_its_line(edit, bash) -> None:
    await bash("printf 'x\\n    if a:\\n        b\\n' > f")
    seen = await edit("str_replace", "f", old_str="if a:\n    b", new_str="c")
    assert "But for white space it is at line 2" in seen.text


async def test_line_ends_and_odd_bytes_are_kept(edit, bash) -> None:
    await bash("printf 'a\\r\\nb\\xff\\r\\nc\\r\\n' > f")
    assert not (await edit("str_replace", "f", old_str="a\nb", new_str="A\nnew\nb")).is_error
    assert not (await edit("insert", "f", insert_line=1, new_str="x")).is_error
    assert await bash("od -An -c f | tr -d ' \\n'; echo") == r"A\r\nx\r\nnew\r\nb377\r\nc\r\n" + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": "view", "path": "missing"}, "does not exist"),
        ({"command": "view", "path": "f", "view_range": [0, 2]}, "within [1, 3]"),
        ({"command": "view", "path": "f", "view_range": [4, 5]}, "within [1, 3]"),
        ({"command": "view", "path": "f", "view_range": [2, 1]}, "not below the first"),
        ({"command": "view", "path": "f", "view_range": [1]}, "two integers"),
        ({"command": "view", "path": ".", "view_range": [1, 2]}, "points to a directory"),
        ({"command": "create", "path": "f", "file_text": "x"}, "already exists"),
        ({"command": "create", "path": "g"}, "`file_text` is required"),
        ({"command": "str_replace", "path": "f"}, "`old_str` is required"),
        ({"command": "str_replace", "path": "f", "old_str": ""}, "is empty"),
        ({"command": "str_replace", "path": "f", "old_str": "a", "new_str": "a"}, "are the same"),
        ({"command": "str_replace", "path": ".", "old_str": "a"}, "is a directory"),
        ({"command": "insert", "path": "f", "insert_line": 4, "new_str": "x"}, "within the range [0, 3]"),
        ({"command": "insert", "path": "f", "new_str": "x"}, "`insert_line` is required"),
        ({"command": "undo_edit", "path": "f"}, "No edit history"),
        ({"command": "view", "path": "binary"}, "is a binary file of 3 bytes"),
        ({"command": "view", "path": "huge"}, "use bash"),
        ({"command": "view", "path": "pipe"}, "not a regular file"),
        ({"command": "view", "path": "a\0b"}, "path"),
        ({"command": "delete", "path": "f"}, "Invalid enum value 'delete'"),
        ({"command": "view"}, "missing required field `path`"),
        ({"command": "view", "path": "f", "view_range": "all"}, "at `$.view_range`"),
    ],
)
async def test_what_does_not_work_says_why(edit, bash, context, arguments, message: str) -> None:
    await bash("printf '1\\n2\\n3\\n' > f; printf 'a\\0b' > binary; truncate -s 11M huge; mkfifo pipe")
    seen = await editor.call(arguments, context)
    assert seen.is_error
    assert message in seen.text


async def test_a_range_and_the_end(edit, bash) -> None:
    await bash("seq 100 > f")
    assert (await edit("view", "f", view_range=[99, -1])).text.endswith(":\n    99\t99\n   100\t100")
    assert (await edit("view", "f", view_range="[2, 3]")).text.endswith(":\n     2\t2\n     3\t3")
    assert (await edit("view", "f", view_range=[100, 500])).text.endswith(":\n   100\t100")


async def test_long_files_are_shown_line_by_line_up_to_the_cap(edit, bash) -> None:
    await bash("seq 100000 > f; head -c 50000 /dev/zero | tr '\\0' x > wide")
    seen = await edit("view", "f")
    assert len(seen.text) <= 16_000
    rest = re.search(r"\[Lines (\d+) to 100000 are not shown", seen.text)
    assert rest
    assert f"\t{int(rest[1]) - 1}\n[Lines" in seen.text
    assert "the line goes on" in (await edit("view", "wide")).text


async def test_a_directory_two_levels_deep(edit, bash, context) -> None:
    await bash("mkdir -p d/e/f/g d/.hidden; touch d/a d/e/b d/e/f/c; ln -s / d/link")
    root = f"{context.sandbox.workdir}/d"
    listed = (await edit("view", "d")).text.split("\n")
    assert listed[1:] == [f"{root}/", f"{root}/a", f"{root}/e/", f"{root}/e/b", f"{root}/e/f/", f"{root}/link"]
    await bash("mkdir many; cd many; seq 3000 | xargs touch; cd ..")
    seen = (await edit("view", "many")).text
    assert "There are more" in seen
    assert len(seen) <= 16_000


async def test_names_of_other_conventions(context) -> None:
    made = await editor.call({"command": "create", "file_path": "f", "content": "a\n", "view_range": None}, context)
    assert not made.is_error, made.text
    edited = await editor.call(
        {"command": "str_replace", "path": "f", "old_string": "a", "new_string": "b", "insert_line": None}, context
    )
    assert not edited.is_error, edited.text
    assert editor.aliases == ("file_editor", "edit_file", "str_replace_based_edit_tool")


async def test_nothing_outside_of_the_local_sandbox_is_touched(edit, bash, tmp_path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    await bash(f"ln -s {outside} link")
    for path in (str(outside), "link", "../../outside"):
        seen = await edit("str_replace", path, old_str="x", new_str="y")
        assert "outside of the sandbox" in seen.text
    assert outside.read_text() == "x"
