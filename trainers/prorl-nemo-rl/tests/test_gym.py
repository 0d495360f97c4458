"""``gym env start`` and ``gym eval run`` themselves: head server, model server and our agent as processes of Gym's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import prorl_nemo_rl
from prorl.testing.engines import free_port

nemo_gym = pytest.importorskip("nemo_gym", reason="nemo-gym is not installed: it wants Python 3.12")
OURS = Path(prorl_nemo_rl.__file__).parents[1] / "responses_api_agents/prorl_agent"
GYM = Path(sys.prefix) / "bin/gym"
SERVERS = ("responses_api_agents/prorl_agent", "responses_api_models/vllm_model")


def config(scene, folder: Path, head: int) -> Path:
    """What NeMo RL hands to Gym, in JSON, which is YAML. Gym would make an environment for each server: this one."""
    for server in SERVERS:
        (folder / "venvs" / server).mkdir(parents=True)
        (folder / "venvs" / server / ".venv").symlink_to(sys.prefix)
    here = folder / "gym.yaml"
    here.write_text(
        json.dumps(
            {
                "policy_base_url": [scene.base_url],
                "policy_api_key": "dummy_key",
                "policy_model_name": "policy",
                "head_server": {"host": "127.0.0.1", "port": head},
                "uv_venv_dir": str(folder / "venvs"),
                "skip_venv_if_present": True,
                "prorl_agent": {"responses_api_agents": {"prorl_agent": {"rollouts": scene.rollouts()}}},
            }
        )
    )
    return here


@pytest.fixture
def folder(tmp_path):
    """A user's: the agent's files stand in it where they do not stand beside Gym's own."""
    if not (nemo_gym.PARENT_DIR / SERVERS[0]).exists():  # an editable install
        (tmp_path / "responses_api_agents").mkdir()
        (tmp_path / SERVERS[0]).symlink_to(OURS)
    return tmp_path


@pytest.mark.timeout(600)
@pytest.mark.skipif(not (Path(sys.prefix) / "bin/activate").exists(), reason="Gym starts its servers in a venv")
def test_gym_starts_the_agent_and_collects_rollouts(setting, make_row, folder, until):
    scene = setting()
    head = free_port()
    paths = [f"{SERVERS[0]}/configs/prorl_agent.yaml", f"{SERVERS[1]}/configs/vllm_model_for_training.yaml"]
    paths.append(str(config(scene, folder, head)))
    configs = f"+config_paths=[{','.join(paths)}]"
    rows = folder / "rows.jsonl"
    prompts = [make_row(place=number) for number in range(2)]
    for prompt in prompts:
        del prompt["_ng_task_index"], prompt["_rowidx"]  # Gym numbers them itself
    rows.write_text("".join(f"{json.dumps(prompt)}\n" for prompt in prompts))
    log = folder / "gym.log"
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "default"}
    with log.open("wb") as output:
        servers = subprocess.Popen(
            [GYM, "env", "start", configs],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            until(lambda: b"servers ready!" in log.read_bytes() or servers.poll() is not None, within_s=300)
            assert servers.poll() is None, log.read_text()[-4000:]
            collected = subprocess.run(
                [
                    *(GYM, "eval", "run", "--no-serve", configs),
                    *(f"+input_jsonl_fpath={rows}", f"+output_jsonl_fpath={folder / 'out.jsonl'}", "+num_repeats=2"),
                ],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            members = psutil.Process(servers.pid).children(recursive=True) if servers.poll() is None else []
            servers.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                servers.wait(60)
            _, alive = psutil.wait_procs(members, timeout=10)
            for process in alive:  # Gym interrupts the shells that it started, not what runs in them
                process.kill()
            psutil.wait_procs(alive, timeout=10)
            servers.kill()
            servers.wait()
    assert collected.returncode == 0, collected.stderr[-4000:] + log.read_text()[-4000:]
    found = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [each["reward"] for each in found] == [1.0] * 4
    assert len({each["rollout"]["job_id"] for each in found}) == 4
    assert len({each["rollout"]["group_id"] for each in found}) == 2
