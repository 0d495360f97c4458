"""What is done on the server's own machine, outside of any sandbox, for the core and for plugins that need the same.

::

    locks.py    flock, awaited: a thing made once at a time, and kept while somebody uses it
    run.py      a program to its end: bounded in time, nothing of it left behind (guard.py)
    remove.py   a tree of files that does not want to go
    oldest.py   what goes from a cache that grows
"""
