"""The file editor: `str_replace_editor` as models know it. The work is done inside the sandbox (inside/editor.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from prorl.api import Observation, ToolContext
from prorl.tools.base import StructTool, sandbox_of

Command = Literal["view", "create", "str_replace", "insert", "undo_edit"]
NEEDED = {"create": ("file_text",), "str_replace": ("old_str",), "insert": ("insert_line", "new_str")}
EDITOR_CHARS = 16_000


class EditArguments(msgspec.Struct, forbid_unknown_fields=True):
    command: Annotated[Command, Meta(description="What to do: view, create, str_replace, insert or undo_edit.")]
    path: Annotated[str, Meta(description="Path of the file or directory; a relative one starts at the work folder.")]
    file_text: Annotated[str | None, Meta(description="For create: the content of the new file.")] = None
    old_str: Annotated[
        str | None, Meta(description="For str_replace: the text to replace; it must occur exactly once.")
    ] = None
    new_str: Annotated[
        str | None, Meta(description="For str_replace: what takes its place (default: nothing). For insert: the text.")
    ] = None
    insert_line: Annotated[
        int | None, Meta(description="For insert: the text goes after this line; 0 is before the first.")
    ] = None
    view_range: Annotated[
        list[int] | None, Meta(description="For view of a file: first and last line, from 1; -1 is the last one.")
    ] = None


class StrReplaceEditor(StructTool[EditArguments]):
    name = "str_replace_editor"
    aliases = ("file_editor", "edit_file", "str_replace_based_edit_tool")
    synonyms: ClassVar[Mapping[str, str]] = {
        "file_path": "path",
        "old_string": "old_str",
        "new_string": "new_str",
        "content": "file_text",
    }
    needs_sandbox = True
    description = (
        "View, create and edit text files. view shows a file with line numbers, or a directory two levels deep. "
        "create makes a new file. str_replace replaces a text that occurs exactly once, white space included. "
        "insert puts text after a line. undo_edit takes the last edit of a file back. Long output is cut."
    )
    arguments = EditArguments

    async def run(self, arguments: EditArguments, context: ToolContext) -> Observation:
        for needed in NEEDED.get(arguments.command, ()):
            if getattr(arguments, needed) is None:
                text = f"{self.name}: `{needed}` is required for the command {arguments.command}. {self._usage()}"
                return Observation(text=text, is_error=True)
        request = {**msgspec.structs.asdict(arguments), "output_chars": min(EDITOR_CHARS, context.output_chars)}
        result = await sandbox_of(context).act("edit", request, timeout=context.timeout)
        if result.outcome == "ok":
            return Observation(text=result.output, data={"outcome": "ok"})
        text = f"ERROR: {result.error or result.outcome}"
        return Observation(text=text[:EDITOR_CHARS], is_error=True, data={"outcome": result.outcome})
