"""Put verl and a CPU build of torch into this interpreter's environment: ``python install_verl.py``.

verl names neither torch nor two of its needs. Where pip is configured with a folder of local wheels, uv is told of it;
elsewhere torch comes from wherever uv is pointed (PyTorch's index of CPU wheels is the small one).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

VERL = ("torch==2.13.0", "verl==0.9.1", "TransferQueue==0.1.11", "cachetools>=5")
SLOW_TO_COMPILE = ("verl", "torch", "transformers", "ray", "tensordict", "datasets", "pandas", "peft", "accelerate")


def engines_installer() -> Any:
    """The script that does the same for vLLM, and knows where pip's local wheels are."""
    path = Path(__file__).parents[3] / "core" / "tests" / "engines" / "install_vllm.py"
    spec = importlib.util.spec_from_file_location("install_vllm", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    site = Path(sysconfig.get_paths()["purelib"])
    done = site / ".verl-installed"
    if done.is_file() and done.read_text() == repr(VERL):
        return
    environment = dict(os.environ)
    if "UV_FIND_LINKS" not in environment and (links := engines_installer().pip_find_links()):
        environment["UV_FIND_LINKS"] = links
    install = ["uv", "pip", "install", "--quiet", "--python", sys.executable, *VERL]
    subprocess.run(install, check=True, env=environment)
    # Importing verl for the first time compiles thousands of files otherwise, in every worker that Ray starts.
    folders = [str(site / name) for name in SLOW_TO_COMPILE if (site / name).is_dir()]
    compile_all = [sys.executable, "-m", "compileall", "-qq", "-j", "2", *folders]
    subprocess.run(compile_all, check=False, stdout=subprocess.DEVNULL)  # some files are templates, not Python
    done.write_text(repr(VERL))


if __name__ == "__main__":
    main()
