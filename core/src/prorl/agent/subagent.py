"""Sub-agents: further conversations with the policy in the same job, each a segment (or several) of its trajectory.

They share the job's backend, budget and, if they have tools that need one, its sandbox. Several may run at once::

    doubt = [Message(role="user", content=f"Find a fault in this: {answer}")]
    views = await run_agents(job, {"critic-1": doubt, "critic-2": doubt})
    print([view["answer"] for view in views.values()])
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from prorl.agent.budget import Compact
from prorl.agent.loop import AgentLoop
from prorl.agent.output import RunOutput, blank_output
from prorl.agent.settings import AgentSettings
from prorl.api.errors import ConfigError, ContextOverflow, TaskFault
from prorl.api.job import Job
from prorl.api.llm import Message
from prorl.api.tools import Tool


async def run_agent(
    job: Job,
    name: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[str | Tool] = (),
    settings: AgentSettings | None = None,
    compact: Compact | None = None,
) -> RunOutput:
    """Run an agent called ``name`` to its end, with counts of its own. A prompt that does not fit ends it at once, as
    ``ended="context"``: it is made of what the policy wrote, as often as not.

    ``tools`` by name or as objects; ``settings`` bound it as they bound the main agent (of them ``tools``,
    ``system_prompt``, ``runtime`` and ``sandbox`` are not looked at). Raises what the main loop raises: ``ModelFault``,
    ``SandboxFault``, ``TaskFault``.
    """
    if not name:
        raise TaskFault("a sub-agent needs a name: it tells its segments from the main agent's", code="agent")
    names = tuple(tool for tool in tools if isinstance(tool, str))
    try:
        by_name = dict(zip(names, job.services.tools(names), strict=True))
    except ConfigError as error:
        raise TaskFault(str(error), code="unknown_tool") from error
    chosen = [by_name[tool] if isinstance(tool, str) else tool for tool in tools]
    output = blank_output()
    loop = AgentLoop(
        job.services, chosen, settings or AgentSettings(), job.runtime, output, agent=name, compact=compact
    )
    try:
        await loop.run(messages)
    except ContextOverflow:
        output["ended"] = "context"
    return output


async def run_agents(
    job: Job,
    prompts: Mapping[str, Sequence[Message]],
    *,
    tools: Sequence[str | Tool] = (),
    settings: AgentSettings | None = None,
    compact: Compact | None = None,
) -> dict[str, RunOutput]:
    """Run several agents side by side, each as :func:`run_agent` does; ``prompts`` are by name. When one of them
    raises, the others are ended first, and then its error is raised."""
    tasks = [
        asyncio.ensure_future(run_agent(job, name, messages, tools=tools, settings=settings, compact=compact))
        for name, messages in prompts.items()
    ]
    try:
        outputs = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return dict(zip(prompts, outputs, strict=True))
