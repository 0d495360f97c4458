from prorl.api import HandlerRecord, ToolRecord, hookimpl


@hookimpl
def prorl_tool_backends():
    return [ToolRecord(name="fine", factory=dict, summary="would be fine alone")]


@hookimpl
def prorl_agent_handlers():
    return [HandlerRecord(name="half done", factory=None, summary="a space in the name")]
