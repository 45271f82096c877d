"""Which variables hold secrets, and how they are kept out of everything that is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

# RUNPOD_AI_API_KEY, RUNPOD_ENDPOINT_SECRET, …; AWS_ and BUCKET_ whole, as their names say little
_SECRET_NAME = re.compile(
    r"HF_TOKEN|HUGGING_?FACE_.*TOKEN|RUNPOD_.*(KEY|SECRET)|AWS_|BUCKET_"
    r"|.*(API_?KEY|_TOKEN|SECRET|PASSWORD)$",
    re.IGNORECASE,
)
SECRET_ARGUMENTS = frozenset({"hf_token", "api_key"})

# what the engine's own processes have no use for
_NOT_FOR_CHILDREN = re.compile(r"RUNPOD_.*(KEY|SECRET)|BUCKET_|VLLM_API_KEY$", re.IGNORECASE)
_STORAGE = re.compile(r"AWS_", re.IGNORECASE)

# shorter ones are words ("true", "us"), and striking those out would garble what is shown
_MIN_LENGTH = 6

# a Hugging Face token, wherever somebody put it
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}")

MASK = "***"


def is_secret(variable: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return _SECRET_NAME.match(variable) is not None


def hidden_from_children(environ: Iterable[str], *, reads_storage: bool) -> tuple[str, ...]:
    """The secrets in `environ` that the engine's processes do not need, sorted.

    Args:
        reads_storage: whether the engine itself reads an object store, with the AWS_ variables.
    """
    return tuple(
        sorted(
            name
            for name in environ
            if _NOT_FOR_CHILDREN.match(name) or (not reads_storage and _STORAGE.match(name))
        )
    )


@contextmanager
def withheld(environ: MutableMapping[str, str], names: Iterable[str]) -> Iterator[None]:
    """Take `names` out of `environ` inside the block, and put them back after it."""
    taken = {name: environ.pop(name) for name in tuple(names) if name in environ}
    try:
        yield
    finally:
        environ.update(taken)


class Redactor:
    """Strikes known secrets out of text and plain data."""

    def __init__(self, environ: Mapping[str, str], more: Iterable[object] = ()) -> None:
        found = {value for name, value in environ.items() if is_secret(name)}
        found |= {value for value in more if isinstance(value, str)}
        # what a message shows of a value has been stripped and shortened, so look for the stripped form
        stripped = {value.strip() for value in found}
        self._secrets = sorted((s for s in stripped if len(s) >= _MIN_LENGTH), key=len, reverse=True)

    def text(self, text: str) -> str:
        """`text` with *** for each secret."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return _TOKEN.sub(MASK, text)

    def data(self, value: Any) -> Any:
        """Plain data with *** for each secret in any text of it."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.data(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item) for item in value]
        # a secret of digits alone, read as a number where it does not belong
        return value if self.text(str(value)) == str(value) else MASK
