"""Run under an interpreter that can import NeMo RL's rollout code; prints what came out of it as JSON.

What runs is NeMo RL's own: ``run_async_nemo_gym_rollout`` over a real Ray actor (ours), the postprocessing of its own
Gym actor over our ``/run`` answers, the baselines of its GRPO over both, and its loss over what our actor gave it.
There is no GPU and no policy worker in it.
"""

from __future__ import annotations

import ast
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
from nemo_rl.algorithms.utils import calculate_baseline_and_std_per_prompt
from nemo_rl.data.llm_message_utils import batched_message_log_to_flat_message
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.environments.nemo_gym import NemoGym
from nemo_rl.experience import rollouts as theirs
from transformers import PreTrainedTokenizerFast

from prorl.testing.bytebpe import write_tokenizer
from prorl.testing.tinymodel import write_model
from prorl_nemo_rl.actor import environment_class, result_of, start
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


def rolled_out(here: Scene, rows: list[dict[str, Any]], tokenizer: Any, **generation: Any) -> Any:
    """By their loop, over our actor."""
    actor = start({"model_name": "policy", "base_urls": [here.base_url], "rollouts": here.rollouts()})
    batch = BatchedDataDict({"extra_env_info": rows, "loss_multiplier": torch.ones(len(rows))})
    streams = hasattr(theirs, "run_nemo_gym_rollout_sync")
    config = GENERATION | generation
    call = theirs.run_nemo_gym_rollout_sync if streams else theirs.run_async_nemo_gym_rollout
    found = call(
        policy_generation=SimpleNamespace(cfg=config),
        input_batch=batch,
        tokenizer=tokenizer,
        task_to_env={"nemo_gym": actor},
        generation_config=config,
        **({"log_full_result_tables": False} if streams else {}),
    )
    ray.get(actor.shutdown.remote())
    return found


def through_our_actor(here: Scene, rows: list[dict[str, Any]], tokenizer: Any) -> dict[str, Any]:
    found = rolled_out(here, rows, tokenizer)
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


async def through_their_actor(here: Scene, rows: list[dict[str, Any]], tokenizer: Any) -> tuple[list[Any], list[float]]:
    """Their postprocessing of our answers beside ours of the same, and the advantages that follow."""
    postprocess = NemoGym.__ray_metadata__.modified_class._postprocess_nemo_gym_to_nemo_rl_result
    stand_in = SimpleNamespace(cfg={}, _processor=None)
    pairs = []
    async with Rollouts(here.settings(), model="policy", base_urls=[here.base_url]) as rollouts:
        for each in rows:
            found = await rollouts.run(each)
            wire = [json.loads(json.dumps(found)) for _ in range(2)]
            named = {"nemo_gym_row": each} if "nemo_gym_row" in inspect.signature(postprocess).parameters else {}
            theirs_of_it = postprocess(stand_in, **named, nemo_gym_result=wire[0], tokenizer=tokenizer)
            pairs.append([theirs_of_it, result_of(wire[1])])
    logs = [pair[0]["message_log"] for pair in pairs]
    rewards = [pair[0]["full_result"]["reward"] for pair in pairs]
    return [[_plain(each) for each in pair] for pair in pairs], advantages(logs, rewards)


def advantages(logs: list[Any], rewards: list[float]) -> list[float]:
    """As their GRPO has them: rewards less the mean of the rows that it takes for one prompt's.

    ``algorithms/grpo.py`` itself imports what only a GPU machine has: the one function of it that says which rows these
    are is taken out.
    """
    source = Path(inspect.getfile(calculate_baseline_and_std_per_prompt)).with_name("grpo.py").read_text()
    names = ("_extract_prompt_only_messages", "extract_initial_prompt_messages")
    (found,) = [each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef) and each.name in names]
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(ast.Module([found], []), "grpo.py", "exec"), scope)
    lengths = torch.tensor([len(log[0]["token_ids"]) for log in logs])
    more = (lengths,) if found.name == names[1] else ()
    prompts, _ = batched_message_log_to_flat_message(scope[found.name](logs, *more), {"token_ids": 0})
    total = torch.tensor(rewards)
    baseline, _ = calculate_baseline_and_std_per_prompt(
        prompts["token_ids"], total, torch.ones_like(total), leave_one_out_baseline=False
    )
    return (total - baseline).tolist()


def multi_turn() -> list[float]:
    """Of two rollouts of one prompt that saw different things."""

    def log(observed: int) -> list[dict[str, Any]]:
        parts = [("user", [1, 2]), ("assistant", [3]), ("user", [observed]), ("assistant", [4])]
        return [{"role": role, "token_ids": torch.tensor(ids)} for role, ids in parts]

    return advantages([log(7), log(8)], [1.0, 0.0])


def one_step(folder: Path, tokenizer: Any) -> dict[str, Any] | None:
    """On two rollouts of one prompt, of which one is right, and one that is masked; the right one first."""
    try:
        from nemo_rl_step import Learner  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        if missing.name != "megatron":  # 0.6's loss cannot be imported without it
            raise
        return None
    write_model(folder)
    learner = Learner(folder, tokenizer, CALL)
    with scene(learner, folder, temperature=1.0) as here:
        final = rolled_out(here, [row(0), row(1), row(2, broken=True)], tokenizer, temperature=1.0).final_batch
    rewards = final["total_reward"].tolist()
    order = sorted(range(3), key=lambda place: -rewards[place])
    logs = [final["message_log"][place] for place in order]
    return {"rewards": rewards, **learner.step(logs, advantages(logs, [rewards[place] for place in order]))}


def refused(here: Scene, tokenizer: Any) -> str:
    """What reaches the caller of our actor when the service refuses a job."""
    try:
        rolled_out(here, [row() | {"domain": "unheard-of"}], tokenizer)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


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
            rows = [row(0), row(1, answer="41"), row(2, broken=True), row(3, broken=True)]
            pairs, found = asyncio.run(through_their_actor(here, rows, tokenizer))
            out = {
                "signature": environment_class().__name__,
                "ours": through_our_actor(here, [row(0), row(1), row(2, broken=True)], tokenizer),
                "theirs": pairs,
                "advantages": found,
                "multi_turn": multi_turn(),
                "refused": refused(here, tokenizer),
                "prompts": [request.prompt_ids for request in here.engine.requests],
            }
        out["step"] = one_step(Path(folder), tokenizer)
        ray.shutdown()
    sys.stdout.write(f"\n{json.dumps(out)}\n")


if __name__ == "__main__":
    main()
