"""Faults that pass are tried again; the others, and what nobody can train on, are not."""

import pytest

from prorl.api import Generation
from prorl.client import SampleRules, ServerUnreachable, try_for_samples
from prorl.llm.chat.ledger import Ledger
from prorl.wire import JobRequest, RolloutError, RolloutResult

REQUEST = JobRequest(instance={}, job_id="j")


class Service:
    """Ends each rollout as it is told: a fault's kind, an exception, ``None`` for a good one, ``"mask"``."""

    def __init__(self, *outcomes):
        self.outcomes, self.asked = list(outcomes), []

    async def process(self, request):
        self.asked.append(request.job_id)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        ledger = Ledger()
        stream = ledger.open([1, 2], text="p")
        generation = Generation(token_ids=[3], logprobs=[-0.5], finish="stop")
        stream.append_sampled(generation, backend="http://e", policy_version="v", text="t", after=stream.ids)
        fault = None if outcome in (None, "mask") else RolloutError(kind=outcome, message="no")
        return RolloutResult(
            job_id=request.job_id,
            status="completed",
            stage="eval",
            handler="h",
            error=fault,
            mask_sample=outcome is not None,
            trajectory=ledger.trajectory(),
        )


@pytest.mark.parametrize(
    ("outcomes", "attempts", "asked", "trainable"),
    [
        ([None], 3, ["j.1"], True),
        (["sandbox", "grader", None], 3, ["j.1", "j.2", "j.3"], True),
        (["model", "internal"], 2, ["j.1", "j.2"], False),
        (["task"], 3, ["j.1"], False),
        (["timeout"], 3, ["j.1"], False),
        (["cancelled"], 3, ["j.1"], False),
        (["mask"], 3, ["j.1"], False),
    ],
)
async def test_faults_that_pass_are_tried_again(outcomes, attempts, asked, trainable):
    service = Service(*outcomes)
    tried = await try_for_samples(service, REQUEST, attempts=attempts)
    assert service.asked == asked
    assert (tried.result.job_id, bool(tried.samples)) == (asked[-1], trainable)
    assert (tried.untrainable is None) == trainable
    if tried.untrainable is not None:
        assert tried.untrainable.reason == "masked"
    assert tried.trouble == ("" if trainable else "masked" if outcomes[-1] == "mask" else outcomes[-1])


async def test_what_the_rules_refuse_is_not_run_again():
    service = Service(None)
    tried = await try_for_samples(service, REQUEST, rules=SampleRules(max_prompt=1))
    assert (service.asked, tried.untrainable.reason) == (["j.1"], "prompt_too_long")
    assert tried.trouble == "prompt_too_long"


async def test_what_the_service_raises_comes_out():
    with pytest.raises(ServerUnreachable):
        await try_for_samples(Service(ServerUnreachable("http://x", "gone", tried_s=1.0)), REQUEST)
