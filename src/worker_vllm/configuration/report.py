"""What is found wrong or odd while a configuration is resolved: collected, so that all of it is told at
once."""

from __future__ import annotations

from worker_vllm import values


class Report:
    """Problems, which stop the start, and warnings, which do not; one line each, no line twice."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.warnings: list[str] = []

    def problem(self, line: str) -> None:
        """Something that cannot work."""
        if line not in self.problems:
            self.problems.append(line)

    def bad_value(self, variable: str, raw: object, expected: object) -> None:
        """A value that cannot work: who set it, what it is, and what was expected."""
        self.problem(f"{variable}={values.shown(raw)}: {expected}")

    def warn(self, line: str) -> None:
        """Something that works, though perhaps not as meant."""
        if line not in self.warnings:
            self.warnings.append(line)
