"""Sandboxes: runtimes that start them, the action server inside, and the channel between.

::

    SandboxManager ── Bubblewrap | Apptainer | Local | a plugin's ── ServedSandbox ── Channel ══ inside.server
    (manager.py)      (bubblewrap.py, apptainer.py, local.py)        (served.py)      (channel.py)
"""
