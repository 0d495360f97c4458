"""The multi-turn loop between a model and its tools, as a handler to inherit from."""

from prorl.agent.command import CommandAgentHandler, CommandOutput, CommandSettings
from prorl.agent.context import keep_recent
from prorl.agent.handler import ToolAgentHandler
from prorl.agent.output import Ended, RunOutput
from prorl.agent.settings import AgentSettings
from prorl.agent.subagent import run_agent, run_agents

__all__ = [
    "AgentSettings",
    "CommandAgentHandler",
    "CommandOutput",
    "CommandSettings",
    "Ended",
    "RunOutput",
    "ToolAgentHandler",
    "keep_recent",
    "run_agent",
    "run_agents",
]
