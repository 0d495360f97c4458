"""A real rollout server with a policy behind NeMo RL's HTTP, and Gym's rows for it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from prorl.agent import AgentSettings, ToolAgentHandler
from prorl.api import HandlerRecord, Job, Message, SandboxFault
from prorl.testing.bytebpe import write_tokenizer
from prorl.testing.lab import Lab
from prorl.testing.scripted import Policy, Said, ScriptedEngine, ScriptedRequest
from prorl.testing.scripted.chat import NemoRlSpeech
from prorl_nemo_rl.settings import RolloutSettings

CALL = '<tool_call>\n{"name": "think", "arguments": {"thought": "six times seven"}}\n</tool_call>'
TEMPERATURE = 0.7


class Sums(ToolAgentHandler):
    """``broken``: no sandbox, as often as it says, and for ever if it is true."""

    tools = ("think",)
    broken: ClassVar[dict[str, int]] = {}

    async def init(self, job: Job) -> Any:
        left = job.instance.get("broken", 0)
        if left is True or self.broken.setdefault(str(job.instance), left) > 0:
            self.broken[str(job.instance)] = self.broken.get(str(job.instance), 0) - 1
            raise SandboxFault("no room", code="no_space")
        return await super().init(job)

    def messages(self, job: Job) -> list[Message]:
        return [Message(role="user", content=job.instance["problem"])]

    async def grade(self, job: Job) -> dict[str, Any]:
        return {"reward": float(job.instance["answer"] in job.run_output["answer"])}


class Scene:
    """``lab``: the rollout server; ``engine``: the policy, which takes temperature 0.7 only; ``rows``: Gym's."""

    def __init__(self, lab: Lab, engine: ScriptedEngine, tokenizer: Path) -> None:
        self.lab = lab
        self.engine = engine
        self.tokenizer = tokenizer
        self.base_url = f"{engine.url}/v1"

    def rollouts(self, **settings: Any) -> dict[str, Any]:
        """The settings that a user writes."""
        return {"servers": [self.lab.url], "tokenizer": str(self.tokenizer), "domain": "sums", **settings}

    def settings(self, **settings: Any) -> RolloutSettings:
        return msgspec.convert(self.rollouts(**settings), RolloutSettings)


def row(number: int = 0, **more: Any) -> dict[str, Any]:
    """As NeMo RL after 0.7 sends it."""
    return {
        "responses_create_params": {
            "input": [],
            "temperature": TEMPERATURE,
            "top_p": 1.0,
            "max_output_tokens": 256,
        },
        "agent_ref": {"type": "responses_api_agents", "name": "prorl_agent"},
        "instance": {"problem": "6 * 7?", "answer": "42", **more},
        "_ng_task_index": 0,
        "_rowidx": number,
    }


def once_each(replies: Sequence[Said]) -> Policy:
    def policy(request: ScriptedRequest) -> Said:
        return replies[request.call] if request.call < len(replies) else "I have nothing to add."

    return policy


@contextmanager
def scene(policy: Policy | Sequence[Said], tokenizer: Path, **speech: Any) -> Iterator[Scene]:
    handler = HandlerRecord(name="sums", factory=Sums, summary="sums", settings=AgentSettings)
    with ExitStack() as stack:
        chosen = policy if callable(policy) else once_each(policy)
        engine = stack.enter_context(
            ScriptedEngine(chosen, speech=NemoRlSpeech(**{"temperature": TEMPERATURE, **speech}))
        )
        lab = stack.enter_context(Lab([], handlers=[handler]))
        lab.client.clear_llm_server()
        Sums.broken = {}
        yield Scene(lab, engine, tokenizer)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path


@pytest.fixture
def setting(tokenizer: Path) -> Iterator[Callable[..., Scene]]:
    """``setting(policy)``: a scene until the test ends."""
    with ExitStack() as stack:
        yield lambda policy=(CALL, "It is 42."), **speech: stack.enter_context(scene(policy, tokenizer, **speech))


@pytest.fixture
def until() -> Callable[..., None]:
    def wait(condition: Callable[[], object], within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "the condition never came true"
            threading.Event().wait(0.02)

    return wait


@pytest.fixture
def make_row() -> Callable[..., dict[str, Any]]:
    return row


@pytest.fixture
def run_python() -> Callable[[str], str]:
    return lambda code: subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
