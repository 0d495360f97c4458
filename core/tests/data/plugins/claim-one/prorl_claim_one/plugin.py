from prorl.api import HandlerRecord, ToolRecord, hookimpl


@hookimpl
def prorl_agent_handlers():
    return [
        HandlerRecord(name="one", factory=dict, summary="shares a domain", domains=("shared",), prefixes=("one-",)),
        HandlerRecord(name="only-one", factory=dict, summary="shares nothing"),
    ]


@hookimpl
def prorl_tool_backends():
    return [ToolRecord(name="tool-one", factory=dict, summary="shares an alias", aliases=("shell",))]
