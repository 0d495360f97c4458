"""Viewing and editing text files: the commands and the wording that models know as ``str_replace_editor``.

Line ends and bytes that are no UTF-8 stay as they are. Every edit can be undone, the last first, as long as the server
lives and the history's bounds allow.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any

from .action import Action, BadArgumentsError, argument
from .files import Files

MAX_CHARS = 16_000  # of one answer
MAX_SIZE = 10 << 20  # of a file that is viewed or edited
MAX_ENTRIES = 1000
LEVELS = 2
AROUND = 4  # lines shown before and after an edit
HISTORY = 32 << 20  # bytes of earlier contents, all files together
COMMANDS = ("view", "create", "str_replace", "insert", "undo_edit")
REVIEW = "Review the changes and make sure they are as expected. Edit the file again if necessary."


class EditError(Exception):
    """What the model asked for cannot be done; the message says why and what would help."""


class Editor:
    def __init__(self, files: Files) -> None:
        self._files = files
        self._history: deque[tuple[str, bytes | None]] = deque()  # None: the file was not there
        self._remembered = 0

    def run(self, action: Action) -> None:
        command = argument(action.arguments, "command", str)
        path = self._files.resolve(argument(action.arguments, "path", str))
        if command not in COMMANDS:
            raise BadArgumentsError(f"'command' must be one of {', '.join(COMMANDS)}")
        try:
            text = getattr(self, f"_{command}")(path, action.arguments)
        except EditError as error:
            action.finish("error", error=str(error))
            return
        except FileNotFoundError:
            action.finish("error", error=f"The path {path} does not exist. Please provide a valid path.")
            return
        action.emit(text.encode("utf-8", "replace"))
        action.finish("ok")

    # -- the commands

    def _view(self, path: str, arguments: dict[str, Any]) -> str:
        view_range = argument(arguments, "view_range", (list, type(None)))
        if os.path.isdir(path):  # noqa: PTH112
            if view_range:
                raise EditError("The `view_range` parameter is not allowed when `path` points to a directory.")
            return _listing(path)
        lines = self._read(path).split("\n")
        if lines[-1] == "" and len(lines) > 1:
            lines.pop()
        first, last = _range(view_range, len(lines))
        return _numbered(f"Here's the result of running `cat -n` on {path}:", lines, first, last)

    def _create(self, path: str, arguments: dict[str, Any]) -> str:
        text = argument(arguments, "file_text", str)
        if os.path.lexists(path):
            raise EditError(f"File already exists at: {path}. Cannot overwrite files using command `create`.")
        self._write(path, text, None)
        return f"File created successfully at: {path}"

    def _str_replace(self, path: str, arguments: dict[str, Any]) -> str:
        old, new = argument(arguments, "old_str", str), argument(arguments, "new_str", (str, type(None))) or ""
        if not old:
            raise EditError("No replacement was performed: `old_str` is empty. Use `insert` to add text.")
        if old == new:
            raise EditError("No replacement was performed: `new_str` and `old_str` are the same.")
        text = self._read(path)
        if old not in text and "\r\n" in text:  # models write \n, whatever the file's own line ends are
            old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
        found = _occurrences(text, old)
        if not found:
            raise EditError(_missing(path, text, old))
        if len(found) > 1:
            lines = [text.count("\n", 0, at) + 1 for at in found]
            more = f" and {len(lines) - 20} more" if len(lines) > 20 else ""
            raise EditError(
                f"No replacement was performed. Multiple occurrences of old_str in lines {lines[:20]}{more}. "
                "Please ensure it is unique: include more of the lines around it."
            )
        at = found[0]
        changed = text[:at] + new + text[at + len(old) :]
        self._write(path, changed, text)
        first = text.count("\n", 0, at)
        return self._edited(path, changed, first, first + new.count("\n"))

    def _insert(self, path: str, arguments: dict[str, Any]) -> str:
        number, new = argument(arguments, "insert_line", int), argument(arguments, "new_str", str)
        text = self._read(path)
        lines = text.split("\n")
        last = len(lines) - (lines[-1] == "")
        if not 0 <= number <= last:
            raise EditError(f"Invalid `insert_line` parameter: {number}. It should be within the range [0, {last}].")
        end = "\r\n" if "\r\n" in text else "\n"
        added = new.replace("\r\n", "\n").rstrip("\n").split("\n") if new else [""]
        if end == "\r\n":
            added = [f"{line}\r" for line in added]
        if number == len(lines):  # the last line has no end of its own, and needs one now
            lines[-1] += end[:-1]
        changed = "\n".join(lines[:number] + added + lines[number:])
        self._write(path, changed, text)
        return self._edited(path, changed, number, number + len(added) - 1)

    def _undo_edit(self, path: str, arguments: dict[str, Any]) -> str:
        for index in range(len(self._history) - 1, -1, -1):
            edited, before = self._history[index]
            if edited == path:
                break
        else:
            raise EditError(f"No edit history found for {path}.")
        if before is None:
            os.unlink(path)  # noqa: PTH108
            text = f"Last edit to {path} undone successfully: it was its creation, and the file is gone again."
        else:
            self._files.store(path, before)
            lines = before.decode("utf-8", "surrogateescape").split("\n")
            head = f"Last edit to {path} undone successfully. Here's the result of running `cat -n` on {path}:"
            text = _numbered(head, lines, 1, len(lines))
        del self._history[index]
        self._remembered -= len(before or b"")
        return text

    # -- files

    def _read(self, path: str) -> str:
        if os.path.isdir(path):  # noqa: PTH112
            raise EditError(f"The path {path} is a directory and only the `view` command can be used on directories.")
        data, size = self._files.load(path, MAX_SIZE)
        if size > MAX_SIZE:
            raise EditError(f"{path} has {size} bytes, more than {MAX_SIZE}: use bash (head, sed -n, grep) instead.")
        if b"\0" in data[:65536]:
            raise EditError(f"{path} is a binary file of {size} bytes: it can be neither viewed nor edited as text.")
        return data.decode("utf-8", "surrogateescape")

    def _write(self, path: str, text: str, before: str | None) -> None:
        content = text.encode("utf-8", "surrogateescape")
        earlier = None if before is None else before.encode("utf-8", "surrogateescape")
        try:
            self._files.store(path, content)
        except OSError:
            if earlier is not None:  # no space: what was there is worth more than half of what was to be
                self._files.store(path, earlier)
            raise
        self._history.append((path, earlier))
        self._remembered += len(earlier or b"")
        while self._remembered > HISTORY:
            self._remembered -= len(self._history.popleft()[1] or b"")

    def _edited(self, path: str, text: str, first: int, last: int) -> str:
        """``first`` and ``last`` count from 0."""
        lines = text.split("\n")
        head = f"The file {path} has been edited. Here's the result of running `cat -n` on a snippet of {path}:"
        shown = _numbered(head, lines, max(1, first + 1 - AROUND), min(len(lines), last + 1 + AROUND))
        return f"{shown}\n{REVIEW}"


def _range(view_range: list[Any] | None, lines: int) -> tuple[int, int]:
    if not view_range:
        return 1, lines
    if len(view_range) != 2 or not all(type(number) is int for number in view_range):
        raise EditError("Invalid `view_range`. It should be a list of two integers.")
    first, last = view_range
    if not 1 <= first <= max(lines, 1):
        raise EditError(f"Invalid `view_range`: {view_range}. Its first element should be within [1, {lines}].")
    if last == -1 or last > lines:
        last = lines
    if last < first:
        raise EditError(f"Invalid `view_range`: {view_range}. Its second element should be -1 or not below the first.")
    return first, last


def _numbered(head: str, lines: list[str], first: int, last: int) -> str:
    """``cat -n``, whole lines only, as many as fit; says how to see the rest."""
    shown, room = [head], MAX_CHARS - len(head) - 200
    for number in range(first, last + 1):
        line = f"{number:6}\t{lines[number - 1].rstrip(chr(13))}"
        room -= len(line) + 1
        if room < 0:
            if number == first:
                shown.append(line[: MAX_CHARS // 2] + " [... the line goes on ...]")
            rest = number + (number == first)
            if rest <= last:
                shown.append(f"[Lines {rest} to {last} are not shown: view them with view_range.]")
            break
        shown.append(line)
    return "\n".join(shown)


def _occurrences(text: str, part: str) -> list[int]:
    found, at = [], text.find(part)
    while at >= 0:
        found.append(at)
        at = text.find(part, at + 1)
    return found


def _missing(path: str, text: str, old: str) -> str:
    """Where the model has the spaces wrong, as it most often has, it is told the line."""
    message = f"No replacement was performed, old_str did not appear verbatim in {path}."
    wanted = [line.strip() for line in old.strip().split("\n")]
    lines = [line.strip() for line in text.split("\n")]
    for start in range(len(lines) - len(wanted) + 1):
        if lines[start : start + len(wanted)] == wanted:
            return f"{message} But for white space it is at line {start + 1}: view it, and copy it exactly."
    return message


def _listing(root: str) -> str:
    found: list[str] = []
    more = _list(root, LEVELS, found)
    head = f"Here's the files and directories up to {LEVELS} levels deep in {root}, excluding hidden items:"
    lines, room = [head], MAX_CHARS - len(head) - 200
    for path in found:
        room -= len(path) + 1
        if room < 0:
            more = True
            break
        lines.append(path)
    if more:
        lines.append("[There are more: view a directory below this one.]")
    return "\n".join(lines)


def _list(folder: str, levels: int, found: list[str]) -> bool:
    """Fills ``found``; says whether something was left out."""
    found.append(f"{folder}/" if folder != "/" else folder)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except PermissionError:
        return False
    more = False
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if len(found) >= MAX_ENTRIES:
            return True
        if not entry.is_dir(follow_symlinks=False):
            found.append(entry.path)
        elif levels > 1:
            more = _list(entry.path, levels - 1, found) or more
        else:
            found.append(f"{entry.path}/")
    return more
