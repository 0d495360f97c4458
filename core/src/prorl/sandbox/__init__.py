"""Sandboxes: runtimes that start them, the action server inside, and the channel between.

::

    SandboxManager ── Bubblewrap | Local | a plugin's ── ServedSandbox ── Channel ══ inside.server
    (manager.py)      (bubblewrap.py, local.py)          (served.py)      (channel.py)
"""
