from prorl.api import hookimpl

print("printed while imported")


@hookimpl
def prorl_settings():
    return []
