from prorl.api import CommandRecord, hookimpl


@hookimpl
def prorl_commands():
    return [CommandRecord(name="serve", load=dict, summary="would take the core's own command away")]
