"""Handlers to inherit from: the loop between a model and its tools, and commands that we did not write."""

from prorl.agent.command import CommandAgentHandler
from prorl.agent.context import keep_recent
from prorl.agent.handler import ToolAgentHandler
from prorl.agent.output import Ended, RunOutput
from prorl.agent.running import CommandOutput, CommandSettings
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
