"""Who plays in ``prorl demo``: a small real model, a script that knows the answers, and models that demos bring.

The models run under llama.cpp in this process; the script is played token for token by an engine with the small model's
tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import tokenizers
from rich.markup import escape

from prorl.api.errors import ConfigError
from prorl.api.records import DemoRecord
from prorl.cli.console import INSTALL_MODEL
from prorl.testing.engines import LlamaEngine
from prorl.testing.scripted import ScriptedEngine, ScriptedRequest
from prorl.wire import BackendSpec, SamplingParams

# A 135M-parameter model rarely ends by itself: few tasks and short replies keep the demo inside its minute.
PLAIN = SamplingParams()
SMALL_MODEL = SamplingParams(max_tokens=96, seed=1)
SMALL_MODEL_TURNS = 2
SMALL_MODEL_ROWS = 2
SMALL, SCRIPTED = "smollm2", "scripted"


@dataclass(frozen=True)
class Policy:
    """A policy version: who speaks, in which demos, and how it may. ``spell`` gives one token's text, ``rows`` is how
    many of each demo's it plays, where not all."""

    name: str
    backend: BackendSpec
    demos: tuple[DemoRecord, ...]
    spell: Callable[[int], str]
    sampling: SamplingParams = PLAIN
    settings: dict[str, Any] = field(default_factory=dict)
    rows: int | None = None


def policies_of(stack: ExitStack, demos: Sequence[DemoRecord], say: Callable[[str], None]) -> list[Policy]:
    """Their engines, started. Raises ``ConfigError`` where nobody can play."""
    small = None
    if (reason := LlamaEngine.available()) is None:
        small = stack.enter_context(LlamaEngine(n_ctx=2048, parallel=2)).url
        say(f"model      SmolLM2-135M-Instruct under llama.cpp, {small}")
    else:
        say(f"model      left out: {escape(reason.partition(':')[0])}: {escape(INSTALL_MODEL)}")
    scripted = tuple(demo for demo in demos if demo.script is not None)
    script = stack.enter_context(ScriptedEngine(_script(scripted), tokenizer=small, max_context=4096))

    def spell(token: int) -> str:
        return str(script.call(script.voice.decode([token])))

    policies = []
    if small is not None:
        backend = BackendSpec(url=small, policy_version=SMALL)
        turns = {"max_turns": SMALL_MODEL_TURNS}
        policies.append(Policy(SMALL, backend, tuple(demos), spell, SMALL_MODEL, turns, SMALL_MODEL_ROWS))
    if scripted:
        say(f"script     a policy that knows the answers, {script.url}")
        backend = BackendSpec(url=script.url, policy_version=SCRIPTED)
        policies.append(Policy(SCRIPTED, backend, scripted, spell))
    policies += [policy for demo in demos for policy in _own(stack, demo, say)]
    if not policies:
        raise ConfigError(f"nobody can play {', '.join(demo.name for demo in demos)} here: {INSTALL_MODEL}")
    return policies


def _own(stack: ExitStack, demo: DemoRecord, say: Callable[[str], None]) -> list[Policy]:
    """The model that a demo brings, if it brings one and it can run here."""
    model = demo.model
    if model is None:
        return []
    if (reason := LlamaEngine.available(model.gguf)) is not None:
        say(f"model      {model.name} left out: {escape(reason)}")
        return []
    engine = stack.enter_context(LlamaEngine(model.gguf, n_ctx=model.n_ctx, parallel=len(demo.rows)))
    say(f"model      {model.name}, {escape(model.summary)}, {engine.url}")
    vocabulary = tokenizers.Tokenizer.from_file(str(model.tokenizer / "tokenizer.json"))

    def spell(token: int) -> str:
        return str(vocabulary.decode([token], skip_special_tokens=False))

    backend = BackendSpec(url=engine.url, policy_version=model.name, tokenizer=str(model.tokenizer))
    return [Policy(model.name, backend, (demo,), spell, model.sampling, model.settings)]


def _script(demos: Sequence[DemoRecord]) -> Callable[[ScriptedRequest], str]:
    def policy(request: ScriptedRequest) -> str:
        for demo in demos:
            for row in demo.rows:
                if demo.script is not None and any(
                    isinstance(text, str) and len(text) > 20 and text in request.prompt for text in row.values()
                ):
                    return demo.script(row, request.call) or "I have nothing to add."
        return "I do not know this task."

    return policy
