"""What will go wrong, said in seconds: findings about a model, its configuration and the GPUs to run it on.

Pure arithmetic on facts that others have gathered: no weights are read, no CUDA context is made, and neither
torch nor vLLM is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from worker_vllm.doctor import capability, compatibility, fit, memory, topology, versions
from worker_vllm.doctor.case import Case
from worker_vllm.doctor.finding import Finding, gravest_first
from worker_vllm.doctor.hardware import Hardware, asked_for, this_machine
from worker_vllm.doctor.report import Diagnosis
from worker_vllm.models.facts import ModelFacts

if TYPE_CHECKING:
    from worker_vllm.configuration import Configuration
    from worker_vllm.configuration.arguments import ArgumentTable

__all__ = ["Case", "Diagnosis", "Finding", "Hardware", "asked_for", "case_of", "examine", "this_machine"]


def case_of(
    configuration: Configuration,
    facts: ModelFacts,
    on: Hardware,
    environ: Mapping[str, str],
    table: ArgumentTable | None = None,
) -> Case:
    """The case of a resolved configuration.

    Args:
        table: vLLM's arguments, for its version and the names of its parsers.
    """
    return Case(
        facts=facts,
        arguments={**configuration.engine, **configuration.frontend},
        hardware=on,
        environ=environ,
        vllm=table.release if table else None,
        parsers=table.registries if table else {},
    )


def examine(case: Case, more: list[Finding] | None = None) -> Diagnosis:
    """Everything that can be said of `case`.

    Args:
        more: findings that were made on the way to it.
    """
    found = [
        *(more or ()),
        *versions.findings(),
        *compatibility.findings(case),
        *capability.findings(case),
        *topology.findings(case),
        *fit.findings(case),
    ]
    return Diagnosis(case, tuple(gravest_first(found)), memory.budget(case), fit.smallest_pool(case))
