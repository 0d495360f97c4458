"""The action server: what runs inside every sandbox.

Standard library only, Python 3.8 or newer, because an image brings its own interpreter. The folder is bound read-only
into the sandbox and imported there as the top-level package ``inside``; it must not import anything of ``prorl``.

::

    host ── socketpair ── server ──┬── bash on a pty        (bash.py)
                                   ├── IPython in a worker  (ipython.py, worker.py)
                                   └── small files          (files.py)
"""
