"""A template that rewrites earlier turns, by setting in a new segment: the proxy goes on there, and still finds its way
back to what was before."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import httpx
import pytest

from prorl.testing.bytebpe import write_tokenizer

QWEN3 = Path(__file__).parents[1] / "llm_chat" / "templates" / "qwen3.jinja"


@pytest.mark.parametrize(
    ("history", "origins"), [("keep", ["open", "branch"]), ("segment", ["open", "rewrite", "branch", "rewrite"])]
)
def test_a_template_that_forgets_thinking(house, exact, tmp_path, history, origins):
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(QWEN3.read_text())
    numbers = count()
    policy = lambda request: f"<think>\nHm.\n</think>\n\nReply {next(numbers)}."  # noqa: E731
    with house(policy, tokenizer=tmp_path) as house, house.job(rendering={"history": history}) as job:

        def ask(*said):
            roles = ["user", "assistant"]
            messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
            answer = httpx.post(
                f"{job.url}/v1/chat/completions",
                json={"model": "any", "messages": messages},
                headers={"x-api-key": job.key},
                timeout=60,
            )
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]["message"]["content"]

        first = ask("One?")
        assert first == "Reply 0."
        ask("One?", first, "Two?")
        ask("One?", first, "Two, in other words?")
    assert job.result.error is None
    assert [segment.origin for segment in job.result.trajectory.segments] == origins
    exact(house, job.result)
