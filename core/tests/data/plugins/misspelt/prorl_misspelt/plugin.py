from prorl.api import hookimpl


@hookimpl
def prorl_agent_handler():
    return []
