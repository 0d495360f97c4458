"""The real server with real sandboxes, and an engine whose replies a small torch model samples: what TRL's trainers are
tested with needs no GPU and no vLLM, and every logprob is the policy's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from prorl.agent import AgentSettings, ToolAgentHandler
from prorl.api import HandlerRecord, Job, Message, SandboxFault
from prorl.testing import tinymodel
from prorl.testing.lab import Lab
from prorl.testing.scripted import ScriptedReply, ScriptedRequest
from prorl.wire import BackendSpec
from prorl_trl import RolloutServiceWorker

torch.set_num_threads(1)  # they wait for one another by spinning: on a machine that others use too, more are slower


class Letters(ToolAgentHandler):
    """Rewarded is the share of small letters in what is said, which even a random model can learn. A row may ask for
    trouble: ``{"broken": n}`` fails the first ``n`` attempts in INIT, ``{"turns": 2}`` has a second reply."""

    tools = ()

    def __init__(self) -> None:
        self.tries: dict[str, int] = {}

    def messages(self, job: Job) -> list[Message]:
        name = job.instance["name"]
        self.tries[name] = self.tries.get(name, 0) + 1
        if self.tries[name] <= job.instance.get("broken", 0):
            raise SandboxFault("the disk is full", code="disk")
        return [Message(role="user", content=name)]

    async def run(self, job: Job) -> dict[str, Any]:
        chat = job.services.chat()
        await chat.open(job.config["messages"])
        said = (await chat.reply(max_tokens=8)).text
        for turn in range(1, job.instance.get("turns", 1)):
            await chat.observe([Message(role="user", content=f"more {turn}")])
            said += (await chat.reply(max_tokens=8)).text
        return {"answer": said, "reply": said}

    async def grade(self, job: Job) -> dict[str, Any]:
        said = job.run_output["answer"]
        return {"reward": sum("a" <= letter <= "z" for letter in said) / max(1, len(said))}


class Policy:
    """Samples from a model of its own, in the engine's thread, where :meth:`load` runs as well."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.delays: dict[str, float] = {}  # seconds, for prompts in which a word stands
        self.dice = torch.Generator().manual_seed(0)

    def load(self, state: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict(state)

    def __call__(self, request: ScriptedRequest) -> ScriptedReply:
        ids, said, logprobs = torch.tensor([request.prompt_ids]), [], []
        with torch.no_grad():
            state = self.model(input_ids=ids, use_cache=True)
            for _ in range(request.sampling["max_tokens"]):
                distribution = state.logits[0, -1].log_softmax(-1)
                token = int(torch.multinomial(distribution.exp(), 1, generator=self.dice))
                said.append(token)
                logprobs.append(float(distribution[token]))
                if token == self.model.config.eos_token_id:
                    break
                state = self.model(
                    input_ids=torch.tensor([[token]]), past_key_values=state.past_key_values, use_cache=True
                )
        delay_s = max((delay for word, delay in self.delays.items() if word in request.prompt), default=0.0)
        return ScriptedReply(token_ids=said, logprobs=logprobs, end=False, delay_s=delay_s)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tinymodel.write_model(folder, max_context=512)
    return folder


class Bench:
    """A server, its engine, and the policy behind it."""

    def __init__(self, lab: Lab, policy: Policy) -> None:
        self.lab, self.policy, self.url = lab, policy, lab.url

    def publish(self, trainer: Any, version: str) -> None:
        """What :class:`prorl_trl.FolderPublisher` does to a vLLM."""
        self.hold()
        self.load(trainer.model.state_dict(), version)
        self.release(version)

    def hold(self) -> None:
        self.lab.client.clear_llm_server()

    def load(self, state: dict[str, torch.Tensor], version: str) -> None:
        state = {name: tensor.detach().clone() for name, tensor in state.items()}

        async def swap() -> None:  # between two replies
            self.policy.load(state)
            self.lab.engine.weight_version = version

        self.lab.engine.call(swap())

    def release(self, version: str) -> None:
        self.lab.client.add_llm_server(BackendSpec(url=self.lab.engine.url, policy_version=version))


@pytest.fixture
def bench(model_folder: Path) -> Iterator[Bench]:
    policy, handler = Policy(model_folder), Letters()
    record = HandlerRecord(name="letters", factory=lambda: handler, summary="letters", settings=AgentSettings)
    with Lab(policy, handlers=[record]) as lab:
        yield Bench(lab, policy)


class DirectWeights:
    """Into the engine of these tests, by TRL's protocol."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.version = bench, 0
        self.history: dict[int, dict[str, torch.Tensor]] = {}

    def init_weight_transfer(self) -> None: ...

    def pause(self) -> None:
        self.bench.hold()

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        self.version += 1
        self.history[self.version] = {name: tensor.clone() for name, tensor in iterator}
        self.bench.load(self.history[self.version], str(self.version))

    def resume(self) -> None:
        self.bench.release(str(self.version))

    def destroy(self) -> None: ...


@pytest.fixture
def direct_weights(bench: Bench) -> DirectWeights:
    return DirectWeights(bench)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[RolloutServiceWorker], list[Any]]:
    """``watch(worker)`` is a list of all that the worker hands to the trainer."""

    def watch(worker: RolloutServiceWorker) -> list[Any]:
        seen: list[Any] = []
        put = worker.rollout_buffer.put_nowait
        monkeypatch.setattr(worker.rollout_buffer, "put_nowait", lambda row: (put(row), seen.append(row))[0])
        return seen

    return watch


@pytest.fixture
def assert_exact(model_folder: Path) -> Callable[..., None]:
    """``assert_exact(samples, history)``: every logprob is that of the weights of its version: the sample's own, or one
    of the next few, that came under way. ``history`` has the weights of each version."""

    def check(samples: list[Any], history: dict[int, dict[str, torch.Tensor]], folder: Path = model_folder) -> None:
        model = AutoModelForCausalLM.from_pretrained(folder)
        closest = [np.full(len(sample.input_ids), np.inf) for sample in samples]
        for version, state in history.items():
            model.load_state_dict(state)
            for sample, best in zip(samples, closest, strict=True):
                if not sample.model_version <= version <= sample.model_version + 4:
                    continue
                ids = torch.from_numpy(sample.input_ids)
                with torch.no_grad():
                    own = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
                best[1:] = np.minimum(best[1:], np.abs(own.numpy() - sample.old_log_probs[1:]))
        assert (
            max(best[sample.completion_mask == 1].max() for sample, best in zip(samples, closest, strict=True)) < 1e-4
        )

    return check


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import on_cpu  # noqa: PLC0415 - it imports TRL's trainer, which not every test wants

    on_cpu.without_gpu(monkeypatch)


@pytest.fixture
def until() -> Callable[..., Any]:
    """``until(condition)``: waits until it is true, and gives what it is."""

    def wait(condition: Callable[[], Any], within_s: float = 120.0) -> Any:
        deadline = time.monotonic() + within_s
        while not (found := condition()):
            assert time.monotonic() < deadline, "the condition never came true"
            threading.Event().wait(0.02)
        return found

    return wait
