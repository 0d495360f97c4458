"""Decode the recorded tokens, compare with the recorded texts, and count how often encoding the text again would have
given other tokens: what a trainer that keeps texts would have trained on."""

from __future__ import annotations

from typing import Any

from prorl.api.llm import Tokenizer
from prorl.wire import RolloutResult
from prorl.wire.soundness import Finding


class Texts:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.replies = 0
        self.not_compared = 0
        self.drifted_replies = 0
        self.segments = 0
        self.drifted_segments = 0

    async def check(self, result: RolloutResult) -> list[Finding]:
        """Of a result whose structure is sound."""
        found: list[Finding] = []
        trajectory, tokenizer = result.trajectory, self._tokenizer
        if trajectory.tokenizer is None:  # of an engine that takes messages: texts are as it gave them, calls taken out
            self.not_compared += sum(turn.role == "assistant" for turn in trajectory.turns)
            return []
        for number, turn in enumerate(trajectory.turns):
            if turn.role != "assistant":
                continue
            ids = trajectory.output_ids(turn)
            # The text leaves out the token that ended the turn.
            for said in (ids[:-1], ids):
                if await tokenizer.decode(said) == turn.text:
                    break
            else:
                message = "its tokens are not its text (or they are another tokenizer's)"
                found.append(Finding(code="other_text", message=message, segment=turn.segment, turn=number))
                continue
            self.replies += 1
            self.drifted_replies += await tokenizer.encode(turn.text, special=True) != said
        for segment in trajectory.segments:
            text = await tokenizer.decode(segment.tokens)
            self.segments += 1
            self.drifted_segments += await tokenizer.encode(text, special=True) != segment.tokens
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "replies": self.replies,
            "replies_not_compared": self.not_compared,
            "replies_that_would_encode_otherwise": self.drifted_replies,
            "segments": self.segments,
            "segments_that_would_encode_otherwise": self.drifted_segments,
        }
