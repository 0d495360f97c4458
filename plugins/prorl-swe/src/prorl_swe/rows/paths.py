"""Paths that a row names are somebody else's words: which ones a patch names, and why one is not a path to use."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

HUNK = re.compile(r"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
ESCAPED = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
ESCAPES = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}
MAX_PATH = 1024


def path_problem(path: str) -> str | None:
    """Why ``path`` is not a file of the repository's; ``None`` if it could be one."""
    parts = path.split("/")
    if not path or len(path) > MAX_PATH or any(ord(character) < 32 for character in path):
        return "is empty, too long or has control characters"
    if path.startswith("/") or ".." in parts or PurePosixPath(path).as_posix() != path:
        return "is not a plain relative path"
    if any(part.lower() == ".git" for part in parts):
        return "is in git's own folder"
    return None


def patched_files(patch: str) -> tuple[str, ...]:
    """Every path in the headers of a patch, in its order, old and new names alike. What stands in hunks is content."""
    found: dict[str, None] = {}
    old = new = 0  # lines of the hunk that are still to come
    for line in patch.split("\n"):
        if old > 0 or new > 0:
            old -= line[:1] in ("-", " ", "")
            new -= line[:1] in ("+", " ", "")
        elif hunk := HUNK.match(line):
            old, new = (int(count) if count is not None else 1 for count in hunk.groups())
        else:
            found.update(dict.fromkeys(header_paths(line)))
    return tuple(found)


def header_paths(line: str) -> list[str]:
    for start in ("--- ", "+++ "):
        if line.startswith(start):
            name = unquote(line[len(start) :].partition("\t")[0].rstrip("\r"))
            return [] if name == "/dev/null" else [strip(name)]
    for start in ("rename from ", "rename to ", "copy from ", "copy to "):
        if line.startswith(start):
            return [unquote(line[len(start) :].rstrip("\r"))]
    if line.startswith("diff --git "):
        # Both names are in one line; for a file without hunks (binary, mode, empty) it is the only one, and they agree.
        names = line[len("diff --git ") :].rstrip("\r")
        half = len(names) // 2
        old, new = names[:half], names[half + 1 :]
        if names[half : half + 1] == " " and strip(unquote(old)) == strip(unquote(new)):
            return [strip(unquote(new))]
    return []


def strip(name: str) -> str:
    """Without git's a/ or b/."""
    return name[2:] if name[:2] in ("a/", "b/") else name


def unquote(name: str) -> str:
    """git quotes a name with unusual characters as C does, byte by byte in octal."""
    if len(name) < 2 or not (name.startswith('"') and name.endswith('"')):
        return name

    def byte(found: re.Match[bytes]) -> bytes:
        escaped = found[1]
        return bytes([int(escaped, 8) & 0xFF]) if len(escaped) == 3 else ESCAPES.get(escaped, escaped)

    return ESCAPED.sub(byte, name[1:-1].encode()).decode(errors="replace")
