"""Images: what a sandbox's root is made of, built once, shared, and removed only when nobody uses it.

::

    reference ── Images.acquire ──┬─ None                host: the server's own /usr
    (resolve.py)                  ├─ /path/to/rootfs     folder
                                  ├─ /path/to/image.sif  sif
                                  └─ docker://  def:     SingularityRuntimeBuilder ── ImageCache ── sif
                                                         (builder.py, recipe.py)      (cache.py)

    Roots.mount(image) ── a directory for bubblewrap: squashfuse in a namespace of its own, or unpacked once (roots.py)
"""
