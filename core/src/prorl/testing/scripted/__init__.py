"""The scripted policy, and the dialects that it can speak. See :mod:`prorl.testing.scripted.engine`."""

from prorl.testing.scripted.engine import ScriptedEngine
from prorl.testing.scripted.script import Asked, Played, Policy, Said, ScriptedReply, ScriptedRequest
from prorl.testing.scripted.speech import Speech

__all__ = ["Asked", "Played", "Policy", "Said", "ScriptedEngine", "ScriptedReply", "ScriptedRequest", "Speech"]
