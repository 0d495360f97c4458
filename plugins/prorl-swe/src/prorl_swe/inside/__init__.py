"""What runs in sandboxes, by whatever Python (3.6 or newer) is there: no imports from outside of this package.

::

    host ── secret lines ── supervise ── channel ── start ── pytest or unittest, with a reporter, the repository's code
                            a process of its own             one process, ended and begun anew where tests hang or crash
"""
