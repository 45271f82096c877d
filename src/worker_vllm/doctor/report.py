"""A diagnosis as people and programs read it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from worker_vllm.doctor import gpus
from worker_vllm.doctor.case import Case
from worker_vllm.doctor.finding import Finding
from worker_vllm.doctor.gpus import GIB
from worker_vllm.doctor.memory import Budget

_WIDTH = 100


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor found.

    Attributes:
        case: what was looked at.
        findings: the gravest first.
        budget: the memory of one GPU; None where card or model is not known.
        pool: the smallest number of GPUs and pool of RunPod's that would do; None where none does.
    """

    case: Case
    findings: tuple[Finding, ...]
    budget: Budget | None = None
    pool: tuple[int, str] | None = None

    @property
    def fatal(self) -> tuple[Finding, ...]:
        """What keeps it from starting."""
        return self.of("fatal")

    def of(self, level: str) -> tuple[Finding, ...]:
        """The findings of one level."""
        return tuple(finding for finding in self.findings if finding.level == level)

    def as_data(self) -> dict[str, Any]:
        """All of it as plain data; sizes in bytes."""
        return {
            "model": self.case.facts.name,
            "hardware": {
                "platform": self.case.hardware.platform,
                "gpus": [
                    {"name": gpu.name, "memory": gpu.memory, "capability": list(gpu.capability)}
                    for gpu in self.case.hardware.devices
                ],
            },
            "verdict": "fatal" if self.fatal else "warning" if self.of("warning") else "ok",
            "memory": self._memory(),
            "smallest_choice": {"gpus": self.pool[0], "pool": self.pool[1]} if self.pool else None,
            "findings": [finding.as_data() for finding in self.findings],
        }

    def in_one_line(self) -> str:
        """What memory is expected to hold, for the log; "" where that is not known."""
        held = self.budget
        found = self._capacity(held) if held else {}
        if held is None or not found:
            return ""
        return (
            f"expected on each GPU: weights {_gib(held.weights).strip()}, KV cache about "
            f"{_gib(held.cache).strip()} = {found['tokens']:,} tokens, {found['requests_at_once']:,.1f} "
            f"requests of {found['max_model_len']:,} tokens at once"
        )

    def _memory(self) -> dict[str, Any] | None:
        held = self.budget
        if held is None:
            return None
        return {
            "card": held.total,
            "share": held.share,
            "weights": held.weights,
            "weights_exact": held.weights_exact,
            "activations": held.activations,
            "graphs": held.graphs,
            "kv_cache": held.cache,
            **self._capacity(held),
        }

    def _capacity(self, held: Budget) -> dict[str, Any]:
        plan, length = self.case.plan, self.case.max_model_len
        if plan is None or not plan.bytes_per_block or not length:
            return {}
        available = max(held.cache, 0)
        return {
            "max_model_len": length,
            "blocks": available // plan.bytes_per_block,
            "block_tokens": plan.block_tokens,
            "tokens": plan.tokens(available, length),
            "bytes_per_request": plan.bytes_for(length),
            "requests_at_once": round(plan.requests(available, length), 2),
            "longest": plan.longest(available, length),
        }

    def as_text(self) -> str:
        """Advice, to be read from the top."""
        lines = [f"{self.case.facts.name} on {self._on()}", "", self._verdict()]
        if memory := list(self._memory_lines()):
            lines += ["", "Memory of each GPU", *memory]
        for number, finding in enumerate(self.findings, 1):
            lines += ["", *_shown(number, finding)]
        if self.pool and not any(finding.code == "pool" for finding in self.findings):
            count, pool = self.pool
            names = ", ".join(kind.name for kind in gpus.members(pool))
            choice = f"The smallest choice of RunPod's that would do: {count} x {pool} ({names})."
            lines += ["", *_wrapped(choice, "", first="")]
        return "\n".join(lines)

    def _on(self) -> str:
        there = self.case.hardware
        if there.platform == "cpu":
            return "this machine's CPU (--gpus 1xH100 asks about a GPU that is not here)"
        device = there.smallest
        if device is None:
            return "no GPU: none is visible here (--gpus 1xH100 asks about one that is not)"
        major, minor = device.capability
        return f"{there.count} x {device.name} ({device.memory_gib:.1f} GiB, capability {major}.{minor})"

    def _verdict(self) -> str:
        fatal, warnings = len(self.fatal), len(self.of("warning"))
        if fatal:
            return f"It will not start, for {_count(fatal, 'reason')}."
        if warnings:
            return f"It may well start, but {_count(warnings, 'thing')} can go wrong."
        return "Nothing speaks against it."

    def _memory_lines(self) -> Iterator[str]:
        held = self.budget
        if held is None:
            return
        about = "" if held.weights_exact else "about "
        yield f"  card       {_gib(held.total)}, of which vLLM uses {_gib(held.share).strip()}"
        yield f"  weights    {_gib(held.weights)} {about}({held.weights_source})"
        yield f"  working    {_gib(held.activations + held.graphs)} (estimate: one full step, CUDA graphs)"
        found = self._capacity(held)
        if not found:
            yield f"  left       {_gib(held.cache)}"
            return
        each = found["bytes_per_request"] / found["max_model_len"] / 1024
        yield f"  KV cache   {_gib(held.cache)} = {found['tokens']:,} tokens of {each:.1f} KiB"
        requests, length = found["requests_at_once"], found["max_model_len"]
        yield f"               {requests:,.1f} requests of the full {length:,} tokens at once"


def _shown(number: int, finding: Finding) -> Iterator[str]:
    yield from _wrapped(f"{number}. {finding.level}: {finding.message}.", "   ", first="")
    if finding.cause:
        yield from _wrapped(f"Why: {finding.cause}.", "        ", first="   ")
    if finding.remedy:
        yield from _wrapped(f"Do:  {finding.remedy}.", "        ", first="   ")


def _wrapped(text: str, indent: str, *, first: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=indent, break_long_words=False)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _gib(size: int) -> str:
    return f"{size / GIB:6.1f} GiB"
