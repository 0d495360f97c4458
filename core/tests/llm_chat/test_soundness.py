"""What cannot be is told from a trajectory alone, with the certificate it had and with any other."""

import math

import msgspec
import pytest

from prorl.wire import RolloutResult, VersionSpan
from prorl.wire.certificate import certify
from prorl.wire.soundness import check_chain, check_result, check_structure


def codes(findings):
    return [finding.code for finding in findings]


def unmask(t):
    t.segments[0].loss_mask[3] = 0


def mask_a_prompt(t):
    t.segments[0].loss_mask[0] = 1


def mask_of_another_kind(t):
    t.segments[0].loss_mask[0] = 2


def shift_the_mask(t):
    """As many ones as there should be, one place early."""
    t.segments[0].loss_mask[2:5] = [1, 1, 0]


def shift_the_logprobs(t):
    logprobs = t.segments[0].logprobs
    logprobs[2:5] = [*logprobs[3:5], None]


def shift_the_versions(t):
    t.segments[0].versions[0] = VersionSpan("", 2)
    t.segments[0].versions[1] = VersionSpan("1", 2)


def logprob_without_end(t):
    t.segments[0].logprobs[3] = -math.inf


def logprob_taken_away(t):
    t.segments[0].logprobs[3] = None


def logprob_above_zero(t):
    t.segments[0].logprobs[3] = 0.1


def logprob_of_a_prompt(t):
    t.segments[0].logprobs[0] = -1.0


def version_taken_away(t):
    t.segments[0].versions[1] = VersionSpan("", 1)


def version_of_a_prompt(t):
    t.segments[0].versions[0] = VersionSpan("1", 3)


def versions_too_short(t):
    t.segments[0].versions.pop()


def versions_with_a_hole(t):
    t.segments[0].versions[1:2] = [VersionSpan("1", 2), VersionSpan("1", -1)]


def list_too_short(t):
    t.segments[0].logprobs.pop()


def token_below_zero(t):
    t.segments[0].tokens[0] = -1


def token_too_large(t):
    t.segments[0].tokens[0] = 2**32


def drop_a_turn(t):
    del t.turns[2], t.certificate.links[2]


def drop_the_last_turn(t):
    del t.turns[-1], t.certificate.links[-1]


def swap_segments(t):
    t.segments[0], t.segments[1] = t.segments[1], t.segments[0]


def swap_turns(t):
    t.turns[1], t.turns[2] = t.turns[2], t.turns[1]


def turn_past_the_end(t):
    t.turns[-1].end += 1


def turn_that_ends_before_it_begins(t):
    t.turns[-1].end = 1


def turn_of_no_segment(t):
    t.turns[-1].segment = 4


def turn_before_the_start(t):
    t.turns[0].start = -3


def branch_of_other_tokens(t):
    t.segments[1].tokens[0] = 2


def branch_of_a_later_segment(t):
    t.segments[1].parent = 3


def branch_of_nothing(t):
    t.segments[1].parent = None


def longer_than_its_parent(t):
    t.segments[3].shared = 99


IN_THEMSELVES = {
    unmask: "bad_mask",
    mask_a_prompt: "bad_mask",
    mask_of_another_kind: "bad_mask",
    shift_the_mask: "bad_mask",
    shift_the_logprobs: "bad_logprob",
    shift_the_versions: "bad_version",
    logprob_without_end: "bad_logprob",
    logprob_taken_away: "bad_logprob",
    logprob_above_zero: "bad_logprob",
    logprob_of_a_prompt: "bad_logprob",
    version_taken_away: "bad_version",
    version_of_a_prompt: "bad_version",
    versions_too_short: "lengths",
    versions_with_a_hole: "lengths",
    list_too_short: "lengths",
    token_below_zero: "bad_token",
    token_too_large: "bad_token",
    drop_a_turn: "bad_turn",
    drop_the_last_turn: "bad_turn",
    swap_segments: "bad_branch",
    swap_turns: "bad_turn",
    turn_past_the_end: "bad_turn",
    turn_that_ends_before_it_begins: "bad_turn",
    turn_of_no_segment: "bad_turn",
    turn_before_the_start: "bad_turn",
    branch_of_other_tokens: "bad_branch",
    branch_of_a_later_segment: "bad_branch",
    branch_of_nothing: "bad_branch",
    longer_than_its_parent: "bad_branch",
}


@pytest.mark.parametrize("forge", IN_THEMSELVES, ids=lambda forge: forge.__name__)
def test_what_cannot_be_is_told_with_and_without_a_chain(trajectory, forge):
    forge(trajectory)
    assert IN_THEMSELVES[forge] in codes(check_structure(trajectory))
    assert set(codes(check_chain(trajectory))) & {"broken_link", "broken_seal"}


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number(trajectory, reward):
    trajectory.certificate = certify(trajectory)
    result = RolloutResult(job_id="j", status="completed", stage="eval", handler="h", trajectory=trajectory)
    assert check_result(result) == []
    result.reward = reward
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=RolloutResult)
    assert codes(check_result(travelled)) == ["bad_reward"]
