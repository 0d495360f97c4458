"""Put packages into this interpreter's environment: ``python install_here.py 'torch>=2.6' ...``.

Where pip is configured with a folder of local wheels, uv is told of it (uv does not read pip's configuration);
elsewhere torch comes from wherever uv is pointed: ``UV_TORCH_BACKEND=cpu`` takes PyTorch's own CPU builds, a tenth of
what PyPI's take.
"""

from __future__ import annotations

import os
import subprocess
import sys

from install_vllm import pip_find_links


def main(packages: list[str]) -> None:
    environment = dict(os.environ)
    if "UV_FIND_LINKS" not in environment and (links := pip_find_links()):
        environment["UV_FIND_LINKS"] = links
    subprocess.run(
        ["uv", "pip", "install", "--quiet", "--python", sys.executable, *packages], check=True, env=environment
    )


if __name__ == "__main__":
    main(sys.argv[1:])
