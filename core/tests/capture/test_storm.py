"""Agents that do everything at once: branches, retries, hang-ups, on several threads. Whatever the order, all tokens
are exact, and nothing is sampled twice for a retry."""

from __future__ import annotations

import json
import random
import threading
from itertools import count
from typing import Any

import httpx
import pytest


class Storm:
    """Conversations that any thread may take up; every reply says a number of its own."""

    def __init__(self, job: Any, seed: int) -> None:
        self.job = job
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.known: list[list[dict[str, str]]] = [[]]
        self.numbers = count()
        self.left = self.seconds = 0
        self.trouble: list[BaseException] = []

    def choose(self) -> tuple[str, list[dict[str, str]]]:
        with self.lock:
            what = self.random.choices(["say", "retry", "leave", "second"], [6, 2, 1, 1])[0]
            conversation = self.random.choice(self.known[-6:] + self.known[:1])
            return what, [*conversation, {"role": "user", "content": f"Say {next(self.numbers)}."}]

    def post(self, client: httpx.Client, messages: list[dict[str, str]], retries: int) -> str:
        stream = len(messages) % 2 == 0
        answer = client.post(
            f"{self.job.url}/v1/chat/completions",
            json={"model": "any", "messages": messages, "stream": stream},
            headers={"x-api-key": self.job.key, "x-stainless-retry-count": str(retries)},
        )
        assert answer.status_code == 200, answer.text
        if not stream:
            return str(answer.json()["choices"][0]["message"]["content"])
        assert answer.text.endswith("data: [DONE]\n\n")
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        return "".join(json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines)

    def act(self, client: httpx.Client) -> None:
        what, messages = self.choose()
        if what == "leave":
            try:
                client.post(
                    f"{self.job.url}/v1/chat/completions",
                    json={"model": "any", "messages": messages},
                    headers={"x-api-key": self.job.key},
                    timeout=httpx.Timeout(60, read=0.001),
                )
            except httpx.ReadTimeout:
                self.left += 1
        said = self.post(client, messages, 0)
        if what == "retry":
            assert self.post(client, messages, 1) == said
        replies = [said]
        if what == "second":
            self.seconds += 1
            replies.append(self.post(client, messages, 0))
            assert replies[0] != replies[1]
        with self.lock:
            self.known += [[*messages, {"role": "assistant", "content": reply}] for reply in replies]

    def run(self) -> None:
        try:
            with httpx.Client(timeout=60) as client:
                for _ in range(12):
                    self.act(client)
        except BaseException as error:
            self.trouble.append(error)


@pytest.mark.parametrize("seed", range(3))
def test_a_storm(house, exact, wait_until, seed):
    numbers = count()
    with house(lambda request: f"Reply {next(numbers)}.") as house, house.job() as job:
        storm = Storm(job, seed)
        threads = [threading.Thread(target=storm.run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: house.engine.in_flight == 0)
    assert not storm.trouble, storm.trouble
    assert job.result.error is None
    trajectory = job.result.trajectory
    replies = [turn.text for turn in trajectory.turns if turn.role == "assistant"]
    assert len(set(replies)) == len(replies) == job.metrics["calls"]
    # An answer may have gone out in full just before its client left; then the next call is a second sample.
    assert 4 * 12 + storm.seconds <= job.metrics["calls"] <= 4 * 12 + storm.seconds + storm.left
    assert len(trajectory.segments) > 1
    exact(house, job.result)
