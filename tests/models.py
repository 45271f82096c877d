"""Where the set-up put the model folders that tests use (see builder/models.py)."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "models"


def demo() -> Path:
    """SmolLM2-135M-Instruct in bfloat16: real answers."""
    return _present("smollm2-135m-instruct")


def tiny() -> Path:
    """Two random layers with the demo model's tokenizer and chat template: starts fast, answers nonsense."""
    return _present("tiny-random")


def embedding() -> Path:
    """all-MiniLM-L6-v2: sentence embeddings."""
    return _present("all-minilm-l6-v2")


def _present(name: str) -> Path:
    folder = FOLDER / name
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is missing: run `.venv/bin/python -m builder.setup --tests`")
    return folder
