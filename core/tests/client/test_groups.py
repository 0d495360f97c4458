"""What a trainer may train on."""

import pytest

from prorl.client.groups import Attempt
from prorl.wire import RolloutResult, Trajectory


def attempt(*, mask: bool = False, trainable: bool = True) -> Attempt:
    trajectory = Trajectory(trainable=trainable)
    result = RolloutResult(
        job_id="j", status="completed", stage="eval", handler="h", mask_sample=mask, trajectory=trajectory
    )
    return Attempt(job_id="j", step=0, result=result)


@pytest.mark.parametrize(
    ("each", "trouble"),
    [
        (attempt(), ""),
        (attempt(mask=True), "masked"),
        (attempt(trainable=False), "without_tokens"),
        (attempt(mask=True, trainable=False), "masked"),
        (Attempt(job_id="j", step=0), "lost/NoneType"),
    ],
)
def test_a_masked_sample_and_one_without_its_own_tokens_are_not_trained_on(each, trouble):
    assert (each.trainable, each.trouble) == (trouble == "", trouble)
