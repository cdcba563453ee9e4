"""What the tests of executors share: the folder of a tiny model, made once a session."""

from pathlib import Path
from typing import Any

import pytest

from tests.tiny_model import build


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny random Llama; to be read only."""
    return build(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def reference(tiny_folder: Path) -> Any:
    """The tiny model as transformers runs it by itself."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype="float32")
    return model.eval()
