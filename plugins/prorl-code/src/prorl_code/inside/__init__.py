"""Programs that run inside a judge's sandbox: the standard library alone, Python 3.9 or newer, one file each.

They are never imported by the server; their text is sent into the sandbox.
"""
