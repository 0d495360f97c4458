"""``prorl verify`` on results of a real server: what is wrong is said, with its place, and in the exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from prorl.agent import AgentSettings, ToolAgentHandler
from prorl.api import ConfigError, HandlerRecord, Message, ModelFault
from prorl.cli.verify import command
from prorl.cli.verify.rescoring import Rescoring
from prorl.testing.bytebpe import build_tokenizer, write_tokenizer
from prorl.testing.engines import LlamaEngine
from prorl.testing.httpd import json_response
from prorl.testing.lab import Lab
from prorl.testing.scripted import ScriptedEngine, ScriptedReply
from prorl.wire import JobView, RolloutResult, VersionSpan
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


@pytest.fixture(scope="module")
def engine():
    with ScoringEngine() as engine:
        yield engine


@pytest.fixture(scope="module")
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
def verify(tmp_path):
    """The command in this process on results or bytes: ``(exit status, stdout)``."""

    def run(content, *options: str, name: str = "results.jsonl"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else b"".join(map(line_of, content)))
        done = CliRunner().invoke(command, [str(path), *map(str, options)], standalone_mode=False)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.return_value, done.stdout

    return run


@pytest.fixture
def key(tmp_path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    return path


def line_of(result: RolloutResult) -> bytes:
    return msgspec.json.encode(result) + b"\n"


def certified_anew(result: RolloutResult) -> None:
    signature = result.trajectory.certificate.signature
    result.trajectory.certificate = msgspec.structs.replace(certify(result.trajectory), signature=signature)


def test_all_good(results, verify, key, engine):
    status, out = verify(results, "--key", key, "--engine", engine.url)
    assert status == 0, out
    assert "3 (3 certified, 3 signed)" in out
    assert "all good" in out
    status, out = verify(results, "--json", "--engine", engine.url)
    report = json.loads(out)
    assert (status, report["ok"], report["turns"], report["wrong"]) == (0, True, 12, [])
    assert report["sampled_tokens"] == {"1": report["engine"]["tokens_compared"]}


def test_an_engine_that_compared_nothing_proves_nothing(results, verify, engine):
    """Whoever forges a file may name a version that no engine has any more."""
    status, out = verify(results, "--json", "--engine", engine.url, "--version", "0")
    report = json.loads(out)
    assert (status, report["ok"], report["wrong"]) == (1, False, [])
    assert report["sampled_tokens"] == {"1": report["engine"]["tokens_not_compared"]["version 1"]}
    assert report["engine"]["tokens_compared"] == 0
    status, out = verify(results, "--engine", engine.url, "--version", "0")
    assert status == 1
    assert "compared none of the" in out
    assert "all good" not in out


def test_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="put them into a file"):
        CliRunner().invoke(command, [str(tmp_path / "pipe")], standalone_mode=False, catch_exceptions=False)


@pytest.mark.parametrize("form", ["jsonl", "one", "indented", "list", "view", "msgpack", "msgpack list"])
def test_forms_of_files(results, verify, form):
    one = msgspec.json.encode(results[0])
    view = JobView(job_id="j", state="completed", handler="answer", result=results[0])
    content = {
        "jsonl": one + b"\n\n" + one,
        "one": one,
        "indented": msgspec.json.format(one, indent=2),
        "list": msgspec.json.format(msgspec.json.encode(results), indent=2),
        "view": msgspec.json.encode(view),
        "msgpack": msgspec.msgpack.encode(results[0]),
        "msgpack list": msgspec.msgpack.encode(results),
    }[form]
    status, out = verify(content, "--json", name="r.msgpack" if "msgpack" in form else "r.json")
    assert status == 0, out
    assert json.loads(out)["results"] == {"jsonl": 2, "list": 3, "msgpack list": 3}.get(form, 1)


def test_what_is_wrong_is_said_with_its_place(results, verify):
    results[1].trajectory.turns[2].text = "I never said that"
    results[2].trajectory.segments[0].loss_mask[-1] = 0
    status, out = verify(results)
    assert status == 1
    assert "2 lines of the file not good" in out
    status, out = verify(results, "--json")
    wrong = json.loads(out)["wrong"]
    assert [(each["line"], each["job_id"], each["findings"][0]["code"]) for each in wrong] == [
        (2, "job-6", "broken_link"),
        (3, "job-7", "bad_mask"),
    ]
    assert wrong[0]["findings"][0]["turn"] == 2


def test_a_certificate_that_is_missing(results, verify):
    results[0].trajectory.certificate = None
    assert verify(results)[0] == 1


@pytest.mark.parametrize(
    "content", [b"", b"no JSON\n", b'{"job_id": 3}\n', b"[1, 2]\n", b'{"job_id": "j"', b"\xff\xfe\n"]
)
def test_what_is_no_file_of_results(verify, content):
    try:
        status, out = verify(content)
    except ConfigError as error:
        status, out = 2, str(error)
    assert status == 2
    assert "no result" in out or "empty" in out


def test_a_file_that_was_cut_off(recorded, verify):
    """What came before is still looked at."""
    whole = b"".join(recorded)
    status, out = verify(whole[:-200], "--json")
    report = json.loads(out)
    assert status == 2
    assert report["results"] == 2
    assert [each["line"] for each in report["wrong"]] == [3]
    assert "cut off" in report["wrong"][0]["unreadable"]


def test_another_reward(results, verify, key):
    results[0].reward = 0.0
    assert verify(results)[0] == 0
    assert verify(results, "--key", key)[0] == 1


def test_a_key_that_is_too_short(results, verify, tmp_path):
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(ConfigError, match="--key"):
        verify(results, "--key", tmp_path / "short")


def shift_a_logprob(result):
    result.trajectory.segments[0].logprobs[-1] -= 0.05


def another_encoding(result):
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


def another_prompt(result):
    """Every reply as it was, but after another prompt."""
    result.trajectory.segments[0].tokens[3] += 1


def out_of_the_vocabulary(result):
    result.trajectory.segments[0].tokens[-1] = 100_000


@pytest.mark.parametrize(
    "forge", [shift_a_logprob, another_encoding, another_prompt, out_of_the_vocabulary], ids=lambda f: f.__name__
)
def test_a_forgery_with_a_chain_of_its_own(results, verify, key, engine, forge):
    forge(results[1])
    certified_anew(results[1])
    assert verify(results)[0] == 0, "hashes alone cannot tell"
    assert verify(results, "--key", key)[0] == 1
    status, out = verify(results, "--engine", engine.url, "--json")
    assert status == 1
    (wrong,) = json.loads(out)["wrong"]
    assert wrong["line"] == 2
    assert {finding["code"] for finding in wrong["findings"]} == {"other_logprob"}


def test_gaps_within_the_tolerance(results, verify, engine):
    shift_a_logprob(results[1])
    certified_anew(results[1])
    status, out = verify(results, "--engine", engine.url, "--tolerance", "0.06", "--json")
    report = json.loads(out)["engine"]
    assert status == 0
    assert report["largest_gap"] == pytest.approx(0.05)
    assert (report["largest_gap_at"]["job_id"], report["largest_gap_at"]["turn"]) == ("job-6", 3)


def test_other_weights_are_seen(results, verify, engine):
    """The engine is said to have the version of the file, and has another."""
    engine.weights = "2"
    try:
        status, _ = verify(results, "--engine", engine.url, "--version", "1")
        unnamed, out = verify(results, "--engine", engine.url, "--json")
    finally:
        engine.weights = "1"
    assert (status, unnamed) == (1, 1)
    assert json.loads(out)["engine"]["tokens_compared"] == 0, "version 2 is not in the file: nothing to compare"


def test_weights_that_nobody_named(results, verify, engine):
    one = results[0].trajectory
    engine.weights = "default"
    try:
        assert verify(results, "--engine", engine.url)[0] == 1, "taken for version 1, which they are not"
        two = [run if run.version == "" else type(run)("9", run.count) for run in one.segments[0].versions]
        one.segments[0].versions = two
        with pytest.raises(ConfigError, match="--version, one of 9, 1"):
            verify(results, "--engine", engine.url)
    finally:
        engine.weights = "1"


def test_replies_that_cannot_be_compared(results, verify, engine):
    for result, sampling in zip(results, ({"top_p": 0.9}, {"temperature": 0.5}, {}), strict=True):
        for turn in result.trajectory.turns:
            turn.sampling = sampling if turn.role == "assistant" else {}
        certified_anew(result)
    status, out = verify(results, "--engine", engine.url, "--json")
    report = json.loads(out)["engine"]
    assert status == 0
    assert set(report["tokens_not_compared"]) == {"sampled with top_p", "temperature 0.5"}
    assert report["tokens_compared"] == sum(results[2].trajectory.segments[0].loss_mask)


@pytest.mark.parametrize("said", [None, float("nan"), float("-inf")])
async def test_an_engine_that_says_nothing_of_a_token(results, said):
    """A dialect of a plugin may answer with anything; that nothing is larger than NaN must not pass for agreement."""

    class Silent:
        async def score(self, ids, *, temperature=1.0):
            return [None, *[said] * (len(ids) - 1)]

    check = Rescoring(Silent(), version="1", tolerance=0.01, max_context=4096)
    found = await check.check(results[0])
    assert [finding.code for finding in found] == ["other_logprob"] * 2
    assert check.compared == 0


def test_why_replies_are_not_compared(results, verify, engine):
    """Weights that changed within a reply, tokens that no engine told, a context that is full."""
    changed, untold, full = (result.trajectory for result in results)
    segment, turn = changed.segments[0], changed.turns[-1]
    count = turn.end - turn.start
    segment.versions[-1:] = [VersionSpan("1", 2), VersionSpan("2", count - 2)]
    untold.trainable = False
    for result in results:
        certified_anew(result)
    before, engine.max_context = engine.max_context, len(full.segments[0].tokens)
    try:
        status, out = verify(results, "--engine", engine.url, "--json")
    finally:
        engine.max_context = before
    assert status == 0
    assert json.loads(out)["engine"]["tokens_not_compared"] == {
        "weights changed within the reply": count,
        "not from an engine that reports tokens": sum(untold.segments[0].loss_mask),
        "no room left in the engine's context": full.turns[-1].end - full.turns[-1].start,
    }


def test_texts(results, verify, tmp_path):
    write_tokenizer(tmp_path / "tokenizer")
    status, out = verify(results, "--tokenizer", tmp_path / "tokenizer", "--json")
    assert status == 0, out
    texts = json.loads(out)["texts"]
    assert (texts["replies"], texts["replies_that_would_encode_otherwise"]) == (6, 0)
    another_encoding(results[0])
    results[1].trajectory.turns[-1].text = "It is 41."
    for result in results:
        certified_anew(result)
    status, out = verify(results, "--tokenizer", tmp_path / "tokenizer", "--json")
    report = json.loads(out)
    assert status == 1
    assert report["texts"]["replies_that_would_encode_otherwise"] == 1
    assert [(each["line"], each["findings"][0]["code"]) for each in report["wrong"]] == [(2, "other_text")]


def test_texts_of_engines_that_take_messages(results, verify, tmp_path):
    """They give text as they see fit: without the calls, without thinking. Nobody lied."""
    write_tokenizer(tmp_path / "tokenizer")
    trajectory = results[1].trajectory
    trajectory.tokenizer, trajectory.turns[1].text = None, ""
    certified_anew(results[1])
    status, out = verify(results, "--tokenizer", tmp_path / "tokenizer", "--json")
    assert status == 0, out
    assert json.loads(out)["texts"]["replies_not_compared"] == 2
    status, out = verify(results[1:2], "--tokenizer", tmp_path / "tokenizer")
    assert status == 1
    assert "no text was compared" in out


def test_an_engine_that_cannot_score(results, verify):
    if (reason := LlamaEngine.available()) is not None:
        pytest.skip(reason)
    with LlamaEngine(n_ctx=512, parallel=1) as llama, pytest.raises(ConfigError, match="no way to score"):
        verify(results, "--engine", llama.url)


def test_an_engine_that_is_gone(results, tmp_path):
    """What was found without it is said."""
    results[1].trajectory.turns[1].text = "other"
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(map(line_of, results)))
    done = CliRunner().invoke(command, [str(path), "--engine", "http://127.0.0.1:9"], standalone_mode=False)
    assert isinstance(done.exception, ModelFault)
    assert "job-6" in done.stdout


@pytest.mark.parametrize("url", ["nonsense", "http://"])
def test_an_engine_that_is_none(results, verify, url):
    with pytest.raises(ConfigError):
        verify(results, "--engine", url)


def test_as_people_run_it(results, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(map(line_of, results)))
    verify = [sys.executable, "-m", "prorl", "verify", str(path)]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "all good" in done.stdout
    path.write_bytes(b"x\n")
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no result" in done.stdout
