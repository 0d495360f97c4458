"""Run under an interpreter that can import NeMo RL's rollout code; prints what came out of it as JSON.

What runs is NeMo RL's own: ``run_async_nemo_gym_rollout`` over a real Ray actor (ours), and the postprocessing of its
own Gym actor over our ``/run`` answers. There is no GPU, no policy and no training step in it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.environments.nemo_gym import NemoGym
from nemo_rl.experience import rollouts as theirs
from transformers import PreTrainedTokenizerFast

from prorl.testing.bytebpe import write_tokenizer
from prorl_nemo_rl.actor import environment_class, result_of, start
from prorl_nemo_rl.answer import answer
from prorl_nemo_rl.rollouts import Rollouts

sys.path.insert(0, str(Path(__file__).parent))
from conftest import CALL, TEMPERATURE, Scene, row, scene

GENERATION = {
    "temperature": TEMPERATURE,
    "top_p": 1.0,
    "top_k": None,
    "max_new_tokens": 256,
    "stop_strings": None,
    "stop_token_ids": None,
    "vllm_cfg": {"max_model_len": 4096},
}


def through_our_actor(here: Scene, rows: list[dict[str, Any]], tokenizer: Any) -> dict[str, Any]:
    actor = start({"model_name": "policy", "base_urls": [here.base_url], "rollouts": here.rollouts()})
    batch = BatchedDataDict({"extra_env_info": rows, "loss_multiplier": torch.ones(len(rows))})
    streams = hasattr(theirs, "run_nemo_gym_rollout_sync")
    call = theirs.run_nemo_gym_rollout_sync if streams else theirs.run_async_nemo_gym_rollout
    found = call(
        policy_generation=SimpleNamespace(cfg=GENERATION),
        input_batch=batch,
        tokenizer=tokenizer,
        task_to_env={"nemo_gym": actor},
        generation_config=GENERATION,
        **({"log_full_result_tables": False} if streams else {}),
    )
    ray.get(actor.shutdown.remote())
    final = found.final_batch
    return {
        "message_log": [
            [{"role": each["role"], "token_ids": each["token_ids"].tolist()} for each in log]
            for log in final["message_log"]
        ],
        "dtypes": sorted({str(each["token_ids"].dtype) for log in final["message_log"] for each in log}),
        "rewards": final["total_reward"].tolist(),
        "masked": final["mask_sample"].tolist() if "mask_sample" in final else None,
        "metrics": {name: value for name, value in found.rollout_metrics.items() if isinstance(value, int | float)},
    }


async def through_their_actor(here: Scene, rows: list[dict[str, Any]], tokenizer: Any) -> list[Any]:
    """Their postprocessing of our answers beside ours of the same."""
    postprocess = NemoGym.__ray_metadata__.modified_class._postprocess_nemo_gym_to_nemo_rl_result
    stand_in = SimpleNamespace(cfg={}, _processor=None)
    pairs = []
    async with Rollouts(here.settings(), here.policy) as rollouts:
        for each in rows:
            found = answer(each, await rollouts.run(each))
            wire = [json.loads(json.dumps(found)) for _ in range(2)]
            named = {"nemo_gym_row": each} if "nemo_gym_row" in inspect.signature(postprocess).parameters else {}
            theirs_of_it = postprocess(stand_in, **named, nemo_gym_result=wire[0], tokenizer=tokenizer)
            pairs.append([_plain(theirs_of_it), _plain(result_of(wire[1]))])
    return pairs


def _plain(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in message.items()}
        for message in result["message_log"]
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json", pad_token="<|endoftext|>")
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        with scene((CALL, "It is 42."), Path(folder)) as here:
            out = {
                "signature": environment_class().__name__,
                "ours": through_our_actor(here, [row(0), row(1), row(2, broken=True)], tokenizer),
                "theirs": asyncio.run(through_their_actor(here, [row(0), row(2, broken=True)], tokenizer)),
                "prompts": [request.prompt_ids for request in here.engine.requests],
            }
        ray.shutdown()
    sys.stdout.write(f"\n{json.dumps(out)}\n")


if __name__ == "__main__":
    main()
