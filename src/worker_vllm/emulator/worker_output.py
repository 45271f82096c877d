"""Where the workers' lines go: to this terminal, all or only what matters, and to a file."""

from __future__ import annotations

import re
from typing import TextIO

PHASE = "phase: "
BRIEF_LENGTH = 160
# Not warnings: vLLM has a dozen at every start on a CPU, and they are in the log.
_TROUBLE = re.compile(r"\b(ERROR|CRITICAL|FATAL)\b|Traceback \(most recent call last\)|\w(Error|Exception): ")


class WorkerOutput:
    """Relays lines.

    Args:
        terminal: where shown lines go, each behind its worker's name.
        log: gets every line, if given; whoever opened it closes it.
        brief: show only start-up phases and errors, long ones cut.
    """

    def __init__(self, terminal: TextIO, log: TextIO | None = None, *, brief: bool = False) -> None:
        self._terminal = terminal
        self._log = log
        self._brief = brief

    def line(self, worker_id: str, text: str) -> None:
        """Relay one line of one worker."""
        if self._log is not None:
            self._log.write(f"{worker_id} | {text}\n")
            self._log.flush()
        if self._brief:
            if PHASE in text:
                text = text[text.index(PHASE) :]  # what stands before it is the logger's: time, level, name
            elif not _TROUBLE.search(text):
                return
            text = text if len(text) <= BRIEF_LENGTH else f"{text[:BRIEF_LENGTH]}…"
        self._terminal.write(f"{worker_id} | {text}\n")
        self._terminal.flush()
