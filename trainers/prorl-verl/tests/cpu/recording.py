"""Our replay buffer, which also writes down what the trainer gets: with it a test can see what every token was sampled
from. The class has the name that the agent loop looks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transfer_queue as tq

from prorl.client import BlockingClient, samples_of
from prorl_verl import sampler

FIELDS = ("prompts", "responses", "response_mask", "rollout_log_probs", "extra_fields")


class RolloutServiceReplayBuffer(sampler.RolloutServiceReplayBuffer):
    """``record`` in ``sampler_kwargs`` is a file, and gets a line of JSON for each row: verl's tokens, mask, logprobs
    and tags, and from the rollout server, by the job's id, each token's policy version."""

    def __init__(self, *, sampler_kwargs: Any, **given: Any) -> None:
        kwargs = dict(sampler_kwargs)
        self._record = Path(kwargs.pop("record"))
        super().__init__(sampler_kwargs=kwargs, **given)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        data = tq.kv_batch_get(keys=batch.keys, partition_id=partition_id, select_fields=list(FIELDS))
        with BlockingClient(self._settings.urls[0]) as server, self._record.open("a") as file:
            for tag, *row in zip(batch.tags, *(data[name] for name in FIELDS), strict=True):
                prompt, response, mask, logprobs, extra = row
                result = server.job(extra["job_id"]).result
                assert result is not None
                (sample,) = samples_of(result)
                assert (sample.prompt_ids, sample.response_ids) == (prompt.tolist(), response.tolist())
                entry = {
                    "step": global_steps,
                    "prompt": prompt.tolist(),
                    "response": response.tolist(),
                    "mask": mask.tolist(),
                    "logprobs": logprobs.tolist(),
                    "versions": sample.versions,
                    "oldest": tag["min_global_steps"],
                    "newest": tag["max_global_steps"],
                }
                file.write(json.dumps(entry) + "\n")
        return batch, metrics
