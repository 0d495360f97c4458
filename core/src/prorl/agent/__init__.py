"""The multi-turn loop between a model and its tools, as a handler to inherit from."""

from prorl.agent.handler import ToolAgentHandler
from prorl.agent.loop import Ended, RunOutput
from prorl.agent.settings import AgentSettings

__all__ = ["AgentSettings", "Ended", "RunOutput", "ToolAgentHandler"]
