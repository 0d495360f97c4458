"""Programs that run inside a judge's sandbox: the standard library alone, Python 3.9 or newer.

The server never imports them; their text is sent into the sandbox.
"""
