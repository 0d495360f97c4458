"""The task as the model sees it: where the repository is, what is wrong with it, and nothing else of the row."""

from __future__ import annotations

from prorl_swe.rows.instance import Instance

SYSTEM_PROMPT = """\
You are a software engineer at work on a repository, in a sandbox without network. You read and run code with bash, \
and change it with the file editor.\
"""
INSTRUCTIONS = """\
Change the repository in {repository} so that the issue is resolved. Look at the code first, reproduce the problem, \
make the smallest change that mends its cause, and run the tests that are there. What counts is the state of the files \
when you call `finish`: hidden tests are run on them. Tests that you add or change are not taken over, and nobody \
answers questions.\
"""


def describe(instance: Instance, worktree: str, instructions: str | None) -> str:
    """``instructions``: the settings' own; ``None``: the domain's; empty: none."""
    text = INSTRUCTIONS if instructions is None else instructions
    about = f"The repository {instance.repo} lies in {worktree}. This issue was reported:"
    parts = [about, f"<issue>\n{instance.problem_statement.strip()}\n</issue>"]
    if text:
        parts.append(text.replace("{repository}", worktree))
    return "\n\n".join(parts)
