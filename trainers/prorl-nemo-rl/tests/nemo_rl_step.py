"""One step of NeMo RL's GRPO on rollouts of ours, as far as it goes on a CPU: its flattening of message logs and its
clipped loss. In the place of its policy worker stands a small torch model, the same that gave the engine its
log-probabilities.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from nemo_rl.algorithms.loss import ClippedPGLossConfig, ClippedPGLossFn
from nemo_rl.data.llm_message_utils import batched_message_log_to_flat_message
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM

from prorl.testing.scripted import ScriptedReply, ScriptedRequest

LOSS = {
    "reference_policy_kl_penalty": 0.01,
    "reference_policy_kl_type": "k3",
    "kl_input_clamp_value": 20.0,
    "kl_output_clamp_value": 10.0,
    "ratio_clip_min": 0.2,
    "ratio_clip_max": 0.2,
    "ratio_clip_c": None,
    "use_on_policy_kl_approximation": False,
    "use_importance_sampling_correction": True,
    "truncated_importance_sampling_ratio": None,
    "token_level_loss": True,
}


class Learner:
    """The policy: it calls the tool, then says what it said in no rollout before, as probably as ``model`` has it."""

    def __init__(self, folder: Path, tokenizer: Any, call: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self._tokenizer = tokenizer
        self._call = call
        self._numbers = itertools.count(41)

    def __call__(self, request: ScriptedRequest) -> ScriptedReply:
        text = self._call if request.call == 0 else f"It is {next(self._numbers)}."
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), self.model.config.eos_token_id]
        with torch.no_grad():
            logprobs = self.logprobs(torch.tensor([request.prompt_ids + ids]))[0, -len(ids) :]
        return ScriptedReply(token_ids=ids, logprobs=logprobs.tolist(), end=False)

    def logprobs(self, ids: Any) -> Any:
        """Of every token but the first, ``[B, S - 1]``. Theirs does the same sum, on a GPU only."""
        return self.model(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]

    def step(self, logs: list[Any], advantages: list[float]) -> dict[str, Any]:
        """What their loss says of the batch, how far engine and learner are apart at most, and how far the step moves
        each row's replies; in nats."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02)
        data = batch(logs, advantages)
        own = self.logprobs(data["input_ids"])
        before = own.detach()
        data["prev_logprobs"] = data["reference_policy_logprobs"] = pad(before, (1, 0))
        counts = {"global_valid_seqs": data["sample_mask"].sum(), "global_valid_toks": data["token_mask"].sum()}
        loss, metrics = ClippedPGLossFn(ClippedPGLossConfig(**LOSS))(own, data, **counts)
        loss.backward()
        optimizer.step()
        gap = (before - data["generation_logprobs"][:, 1:]).abs() * data["token_mask"][:, 1:]
        moved = (self.logprobs(data["input_ids"]).detach() - before) * data["token_mask"][:, 1:]
        return {
            "metrics": {name: value for name, value in metrics.items() if isinstance(value, int | float)},
            "gap": gap.max().item(),
            "trained": data["token_mask"].sum(-1).tolist(),
            "moved": moved.sum(-1).tolist(),
        }


def batch(logs: list[Any], advantages: list[float]) -> Any:
    """As ``grpo_train`` makes it: what the assistant said with log-probabilities is trained on."""
    for message in itertools.chain(*logs):
        message["token_loss_mask"] = torch.full_like(message["token_ids"], message["role"] == "assistant")
        message.setdefault("generation_logprobs", torch.zeros(len(message["token_ids"])))
    flat, lengths = batched_message_log_to_flat_message(logs, {"token_ids": 0})
    ids = flat["token_ids"]
    return BatchedDataDict(
        {
            "input_ids": ids,
            "input_lengths": lengths,
            "generation_logprobs": flat["generation_logprobs"],
            "token_mask": flat["token_loss_mask"],
            "sample_mask": torch.ones(len(logs)),
            "advantages": torch.tensor(advantages)[:, None].expand(ids.shape),
        }
    )
