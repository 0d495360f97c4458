"""Results of a real server, an engine that scores tokens as vLLM does, and the command on them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from prorl.agent import AgentSettings, ToolAgentHandler
from prorl.api import HandlerRecord, Message
from prorl.cli.verify import command
from prorl.testing.bytebpe import build_tokenizer
from prorl.testing.httpd import json_response
from prorl.testing.lab import Lab
from prorl.testing.scripted import ScriptedEngine, ScriptedReply
from prorl.wire import RolloutResult
from prorl.wire.certificate import certify

KEY = b"0123456789abcdef0123456789abcdef"
TOKENIZER = build_tokenizer()
CALL = '<tool_call>\n{"name": "think", "arguments": {"thought": "6 * 7"}}\n</tool_call>'
END = TOKENIZER.token_to_id("<|im_end|>")


class Answer(ToolAgentHandler):
    def messages(self, job):
        return [Message(role="user", content=job.instance["question"])]

    async def grade(self, job):
        return {"reward": float("42" in job.run_output["answer"])}


def logprobs(ids: list[int], start: int = 0, weights: str = "1") -> list[float]:
    """What the model of these tests makes of every id: it hangs on all of them before, and on the weights."""
    found, state = [], sum(map(ord, weights))
    for token in ids:
        state = (state * 31 + token + 1) % 1009
        found.append(-(state % 97) / 100)
    return found[start:]


class ScoringEngine(ScriptedEngine):
    """Plays two turns, and scores prompts as vLLM does."""

    def __init__(self) -> None:
        super().__init__(self._two_turns)
        self.weights = "1"
        self.scored = 0

    def _two_turns(self, request):
        text = CALL if request.call == 0 else "It is 42."
        ids = [*TOKENIZER.encode(text, add_special_tokens=False).ids, END]
        known = logprobs([*request.prompt_ids, *ids], len(request.prompt_ids), self.weights)
        return ScriptedReply(token_ids=ids, logprobs=known, end=False)

    async def handle(self, request):
        body = msgspec.json.decode(request.body) if request.body else {}
        if request.path == "/weight_info":
            return json_response({"weight_version": self.weights})
        if request.path != "/v1/completions" or "prompt_logprobs" not in body:
            return await super().handle(request)
        self.scored += 1
        if body["prompt_logprobs"] != 0:
            return json_response({"error": {"message": "Requested prompt logprobs of -1; max allowed: 20"}}, 400)
        if max(body["prompt"]) >= TOKENIZER.get_vocab_size():
            return json_response({"error": {"message": "Token id is out of vocabulary"}}, 400)
        places = [
            {str(token): {"logprob": logprob, "rank": 1}}
            for token, logprob in zip(body["prompt"], logprobs(body["prompt"], 0, self.weights), strict=True)
        ]
        return json_response({"choices": [{"index": 0, "text": "", "prompt_logprobs": [None, *places[1:]]}]})


@pytest.fixture(scope="package")
def engine():
    with ScoringEngine() as engine:
        yield engine


@pytest.fixture(scope="package")
def recorded(tmp_path_factory, engine) -> list[bytes]:
    """Three rollouts of two turns each, signed."""
    key = tmp_path_factory.mktemp("key") / "key"
    key.write_bytes(KEY)
    record = HandlerRecord(name="answer", factory=Answer, summary="for this test", settings=AgentSettings)
    settings = {"server": {"certificate_key_file": str(key)}, "handlers": {"answer": {"tools": ["think"]}}}
    with Lab([], handlers=[record], settings=settings) as lab:
        lab.client.clear_llm_server()
        lab.client.add_llm_server(engine.url)
        results = [lab.rollout({"question": f"{n} * 7?"}, domain="answer", job_id=f"job-{n}") for n in (5, 6, 7)]
    assert [len(result.trajectory.turns) for result in results] == [4, 4, 4]
    return [msgspec.json.encode(result) + b"\n" for result in results]


@pytest.fixture
def results(recorded) -> list[RolloutResult]:
    return [msgspec.json.decode(line, type=RolloutResult) for line in recorded]


@pytest.fixture
def written(tmp_path):
    """``written(results)``: the path of a file of them, or of these bytes."""

    def write(content, name: str = "results.jsonl") -> Path:
        path = tmp_path / name
        lines = (
            content if isinstance(content, bytes) else b"".join(msgspec.json.encode(each) + b"\n" for each in content)
        )
        path.write_bytes(lines)
        return path

    return write


@pytest.fixture
def verify(written):
    """The command in this process on results or bytes: ``(exit status, stdout)``."""

    def run(content, *options: str, name: str = "results.jsonl"):
        arguments = [str(written(content, name)), *map(str, options)]
        done = CliRunner().invoke(command, arguments, standalone_mode=False)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.return_value, done.stdout

    return run


@pytest.fixture
def key(tmp_path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    return path


class Forge:
    """What a forger may do to a result; ``certify_anew`` gives it a chain of hashes that fits."""

    @staticmethod
    def shift_a_logprob(result: RolloutResult) -> None:
        result.trajectory.segments[0].logprobs[-1] -= 0.05

    @staticmethod
    def another_encoding(result: RolloutResult) -> None:
        """The last reply's text, letter by letter: other tokens, the same text."""
        segment, turn = result.trajectory.segments[0], result.trajectory.turns[-1]
        ids = [TOKENIZER.token_to_id(piece) for piece in "ItĠisĠ42."] + [END]
        assert TOKENIZER.decode(ids, skip_special_tokens=False) == turn.text + "<|im_end|>"
        assert ids != segment.tokens[turn.start :]
        known = (segment.logprobs[turn.start : -1] + [-0.5] * len(ids))[: len(ids)]
        segment.tokens[turn.start :], segment.logprobs[turn.start :] = ids, known
        segment.loss_mask[turn.start :] = [1] * len(ids)
        segment.versions[-1] = type(segment.versions[-1])("1", len(ids))
        turn.end = len(segment.tokens)

    @staticmethod
    def another_prompt(result: RolloutResult) -> None:
        """Every reply as it was, but after another prompt."""
        result.trajectory.segments[0].tokens[3] += 1

    @staticmethod
    def out_of_the_vocabulary(result: RolloutResult) -> None:
        result.trajectory.segments[0].tokens[-1] = 100_000

    @staticmethod
    def certify_anew(result: RolloutResult) -> None:
        signature = result.trajectory.certificate.signature
        result.trajectory.certificate = msgspec.structs.replace(certify(result.trajectory), signature=signature)


@pytest.fixture
def forge() -> type[Forge]:
    return Forge
