"""NeMo RL's own rollout code over our actor and our answers, for every checkout that is named.

``PRORL_NEMO_RL`` lists checkouts of NeMo RL, ``PRORL_NEMO_RL_PYTHON`` is an interpreter that can import
``nemo_rl.experience.rollouts`` from them and has this package and ``prorl[server]``. Python 3.11 with torch for the
CPU, ray and transformers below 5.12 can, though NeMo RL asks for 3.13, and for GPUs to train.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKOUTS = [Path(each) for each in os.environ.get("PRORL_NEMO_RL", "").split(os.pathsep) if each]
DRIVER = Path(__file__).with_name("nemo_rl_driver.py")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("checkout", CHECKOUTS or [None], ids=lambda path: path.name if path else "none")
def test_their_own_code_takes_what_we_give(checkout: Path | None) -> None:
    if checkout is None:
        pytest.skip("PRORL_NEMO_RL names no checkout of NeMo RL")
    ran = subprocess.run(
        [os.environ.get("PRORL_NEMO_RL_PYTHON", sys.executable), str(DRIVER)],
        env={**os.environ, "PYTHONPATH": str(checkout), "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    out = json.loads(ran.stdout.splitlines()[-1])
    streams = "AsyncGenerator" in (checkout / "nemo_rl/environments/nemo_gym.py").read_text()
    assert out["signature"] == ("StreamingEnvironment" if streams else "BatchEnvironment")

    ours = out["ours"]
    assert (ours["rewards"], ours["dtypes"]) == ([1.0, 1.0, 0.0], ["torch.int64"])
    assert ours["masked"] in ([False, False, True], None)  # up to 0.7 nobody asks
    assert [[each["role"] for each in log] for log in ours["message_log"]] == [["user", "assistant"] * 2] * 2 + [
        ["user"]  # no loss, asked or not
    ]
    prompts = {tuple(prompt) for prompt in out["prompts"]}
    for log in ours["message_log"][:2]:
        first, reply, seen = (each["token_ids"] for each in log[:3])
        assert {tuple(first), tuple(first + reply + seen)} <= prompts
    assert ours["metrics"]["prorl_agent/masked/mean"] == pytest.approx(1 / 3)
    assert ours["metrics"]["gen_tokens_per_sample/mean"] > 0

    flags = ("is_invalid_tool_call", "has_malformed_thinking")  # 0.6 has none
    (theirs, same), _, (masked, _), _ = out["theirs"]
    assert theirs == [{k: v for k, v in each.items() if k in theirs[1] or k not in flags} for each in same]
    assert [each["token_ids"] for each in masked] == [[0], [0]]  # it does not give the batch up
    # A masked row teaches nothing, heeded or not, and takes no part in the others' baseline.
    assert out["advantages"] == [0.5, -0.5, 0.0, 0.0]
    assert "unheard-of" in out["refused"]  # not that its error could not be unpickled
    assert out["refused"].startswith("RayTaskError(ServiceError)")
    if "v0.6" in checkout.name:
        assert out["step"] is None
    else:
        takes_a_step(out["step"])
    assert out["multi_turn"] == ([0.0, 0.0] if "v0.6" in checkout.name else [0.5, -0.5])  # the README says so


def takes_a_step(step: dict[str, Any]) -> None:
    """Their loss finds engine and learner at one, leaves the masked row alone, and prefers the rewarded one after."""
    assert sorted(step["rewards"]) == [0.0, 0.0, 1.0]
    assert step["gap"] < 1e-4
    assert step["metrics"]["token_mult_prob_error"] == pytest.approx(1.0, abs=1e-4)
    assert step["metrics"]["sampling_importance_ratio"] == pytest.approx(1.0, abs=1e-4)
    right, wrong, masked = step["trained"]
    assert (right == wrong > 0, masked) == (True, 0)
    right, wrong, masked = step["moved"]
    assert right > wrong + 0.01
    assert masked == 0.0
