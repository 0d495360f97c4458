"""A server with a key signs what it returns; nobody without the key can change it."""

import msgspec
import pytest

from prorl.agent import AgentSettings, ToolAgentHandler
from prorl.api import ConfigError, HandlerRecord, Message
from prorl.plugins import discover
from prorl.server.service import Service
from prorl.server.settings import parse_settings
from prorl.testing.lab import Lab
from prorl.wire import RolloutError, RolloutResult
from prorl.wire.certificate import certify
from prorl.wire.soundness import check_result

KEY = b"0123456789abcdef0123456789abcdef"


class Answer(ToolAgentHandler):
    def messages(self, job):
        return [Message(role="user", content=job.instance["question"])]

    async def grade(self, job):
        return {"reward": float("42" in job.run_output["answer"])}


class Unfit(Answer):
    def final_result(self, job):
        raise KeyError("no result")


HANDLERS = [
    HandlerRecord(name=name, factory=kind, summary="for this test", settings=AgentSettings)
    for name, kind in (("answer", Answer), ("unfit", Unfit))
]


@pytest.fixture(scope="module")
def signed(tmp_path_factory) -> RolloutResult:
    file = tmp_path_factory.mktemp("key") / "key"
    file.write_bytes(KEY + b"\n")
    with Lab(["It is 41."], handlers=HANDLERS, settings={"server": {"certificate_key_file": str(file)}}) as lab:
        broken = lab.rollout({"question": "6 times 7?"}, domain="unfit")
        assert check_result(broken, key=KEY) == []
        return lab.rollout({"question": "6 times 7?"}, domain="answer", job_id="job-1", group_id="group-1")


def test_a_signed_result(signed):
    assert signed.reward == 0.0
    assert signed.trajectory.certificate.signature
    assert check_result(signed, key=KEY) == []
    assert check_result(msgspec.json.decode(msgspec.json.encode(signed), type=RolloutResult), key=KEY) == []
    assert check_result(msgspec.msgpack.decode(msgspec.msgpack.encode(signed), type=RolloutResult), key=KEY) == []
    assert codes(check_result(signed, key=b"another key of some length")) == ["wrong_signature"]


@pytest.mark.parametrize(
    "change",
    [
        {"reward": 1.0},
        {"resolved": True},
        {"mask_sample": True},
        {"job_id": "job-2"},
        {"group_id": "group-2"},
        {"instance_id": "1"},
        {"handler": "math"},
        {"server": "elsewhere"},
        {"status": "failed"},
        {"stage": "run"},
        {"error": RolloutError(kind="model", message="?")},
        {"policy_versions": ["7"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_the_signature_binds(signed, change):
    forged = msgspec.structs.replace(signed, **change)
    assert check_result(forged) == [], "the chain knows nothing of it"
    assert codes(check_result(forged, key=KEY)) == ["wrong_signature"]


def test_a_chain_that_was_computed_anew(signed):
    """Same length, another token, and all hashes right again: only the signature tells."""
    trajectory = msgspec.convert(msgspec.to_builtins(signed.trajectory), type(signed.trajectory))
    trajectory.segments[0].tokens[-1] += 1
    trajectory.certificate = msgspec.structs.replace(
        certify(trajectory), signature=signed.trajectory.certificate.signature
    )
    forged = msgspec.structs.replace(signed, trajectory=trajectory)
    assert check_result(forged) == []
    assert codes(check_result(forged, key=KEY)) == ["wrong_signature"]


def test_a_signature_that_was_taken_away(signed):
    certificate = msgspec.structs.replace(signed.trajectory.certificate, signature=None)
    bare = msgspec.structs.replace(signed.trajectory, certificate=certificate)
    assert codes(check_result(msgspec.structs.replace(signed, trajectory=bare), key=KEY)) == ["no_signature"]


@pytest.mark.parametrize(("content", "said"), [(None, "cannot read"), (b"short\n", "has 5 bytes")])
def test_a_key_that_cannot_be_used(tmp_path, content, said):
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    settings = parse_settings({"server": {"certificate_key_file": str(file)}})
    with pytest.raises(ConfigError, match=said):
        Service(settings, discover())


def codes(findings):
    return [finding.code for finding in findings]
