from prorl.api import HandlerRecord, hookimpl


@hookimpl
def prorl_agent_handlers():
    return [HandlerRecord(name="flaky-domain", factory=dict, summary="named before the plugin fails")]


@hookimpl
def prorl_tool_backends():
    raise RuntimeError("could not reach\nthe registry")
