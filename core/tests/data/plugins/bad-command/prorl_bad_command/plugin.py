from prorl.api import CommandRecord, hookimpl


def load():
    return 1 / 0


@hookimpl
def prorl_commands():
    return [CommandRecord(name="bad-command", load=load, summary="cannot be loaded")]
