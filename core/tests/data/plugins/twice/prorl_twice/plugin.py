from prorl.api import HandlerRecord, hookimpl


@hookimpl
def prorl_agent_handlers():
    return [HandlerRecord(name="twice", factory=dict, summary="one module behind two entry points")]
