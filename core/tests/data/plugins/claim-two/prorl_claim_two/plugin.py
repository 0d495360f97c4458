from prorl.api import HandlerRecord, ToolRecord, hookimpl


@hookimpl
def prorl_agent_handlers():
    return [
        HandlerRecord(name="two", factory=dict, summary="shares a domain", domains=("shared",), prefixes=("two-",)),
        HandlerRecord(name="only-two", factory=dict, summary="shares nothing"),
    ]


@hookimpl
def prorl_tool_backends():
    return [ToolRecord(name="tool-two", factory=dict, summary="shares an alias", aliases=("shell",))]
