"""What the client raises reaches a trainer that called it in another process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from prorl.client import (
    BadAddress,
    ClientError,
    NotARolloutServer,
    ServerUnreachable,
    ServiceError,
    Stalled,
    Untrainable,
    WeightsRefused,
)
from prorl.client.errors import Portable
from prorl.client.groups import Attempt, Group, Prompt
from prorl.wire.jobs import JobRequest
from prorl.wire.results import RolloutResult
from prorl.wire.service import Problem

GROUP = Group("g", Prompt(prompt_id="p", request=JobRequest(instance={})), 1)
GROUP.failed.append((0, Attempt(job_id="j", step=0, error=ClientError("gone"))))
RESULT = RolloutResult(job_id="j", status="failed", stage="run", handler="h")
RAISED = [
    ClientError("the fleet was closed"),
    ServiceError(Problem(title="Busy", status=503, detail="wait"), retry_after_s=2.0),
    ServerUnreachable("http://a:1", "refused", tried_s=3.0),
    NotARolloutServer("http://a:1", "404"),
    BadAddress("a b"),
    Stalled([GROUP]),
    WeightsRefused("http://a:1", "pause", "no"),
    Untrainable(RESULT, "masked", "it is masked"),
]


def every_class(base: type[Portable] = Portable) -> Iterator[type[Portable]]:
    for kind in base.__subclasses__():
        yield kind
        yield from every_class(kind)


def test_none_is_left_out() -> None:
    assert {type(error) for error in RAISED} == {kind for kind in every_class() if kind.__module__.startswith("prorl.")}


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_after_pickling(error: Portable) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy).keys()) == (str(error), vars(error).keys())
    plain = {name: value for name, value in vars(error).items() if name != "groups"}
    assert {name: vars(copy)[name] for name in plain} == plain
