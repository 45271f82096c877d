"""Why an engine process failed: told by the process itself, since its parent only learns that it ended.

vLLM's children log their exception and exit; what the parent then raises says "see root cause above". So each
vLLM process of this worker gets one more log handler, which writes the last line of a logged exception (its
type and message, nothing else: no traceback, no request data) to a file that the parent reads.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping, MutableMapping
from copy import deepcopy
from pathlib import Path
from typing import Any

CONFIG_VARIABLE = "VLLM_LOGGING_CONFIG_PATH"
"""Where vLLM looks for a logging configuration when it is imported, in spawned children too."""
MAX_CHARACTERS = 600
_LOGGER = "vllm"


class ExceptionFile(logging.Handler):
    """Appends one line per logged exception to the file at `path`; everything else is ignored."""

    def __init__(self, path: str) -> None:
        super().__init__(logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record's exception, if it has one. A full disk or a removed file is nobody's news."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        line = f"{type(error).__name__}: {text}" if text else type(error).__name__
        try:
            with open(self._path, "a", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                file.write(line[:MAX_CHARACTERS] + "\n")
        except OSError:
            pass


class Causes:
    """The exceptions that the engine's processes have logged since this was opened.

    Open it before the engine is built and close it when the engine has been stopped; closing removes the
    files and the environment variable.

    Args:
        environ: the process's environment, which children inherit. A logging configuration that the user has
            chosen stays, and then only forked children are heard.
        logging_config: vLLM's own default, which is extended.
    """

    def __init__(self, environ: MutableMapping[str, str], logging_config: Mapping[str, Any]) -> None:
        self._environ = environ
        self._folder = tempfile.TemporaryDirectory(prefix="worker-vllm-", ignore_cleanup_errors=True)
        self._file = Path(self._folder.name) / "exceptions"
        self._handler = ExceptionFile(str(self._file))
        logging.getLogger(_LOGGER).addHandler(self._handler)  # a forked child inherits it
        self._sets_variable = not environ.get(CONFIG_VARIABLE)
        if self._sets_variable:
            config = Path(self._folder.name) / "logging.json"
            config.write_text(json.dumps(_extended(logging_config, str(self._file))), encoding="utf-8")
            environ[CONFIG_VARIABLE] = str(config)

    def first(self) -> str | None:
        """The first exception, which is the root: later ones are other processes noticing it. None if no
        process logged one (killed, say)."""
        try:
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except OSError:
            return None
        return lines[0] if lines else None

    def close(self) -> None:
        """Stop listening. Repeatable."""
        logging.getLogger(_LOGGER).removeHandler(self._handler)
        if self._sets_variable:
            self._environ.pop(CONFIG_VARIABLE, None)
            self._sets_variable = False
        self._folder.cleanup()


def _extended(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    extended = deepcopy(dict(config))
    extended["handlers"]["exceptions"] = {"()": f"{__name__}.{ExceptionFile.__name__}", "path": path}
    extended["loggers"][_LOGGER]["handlers"] = [*extended["loggers"][_LOGGER]["handlers"], "exceptions"]
    return extended
