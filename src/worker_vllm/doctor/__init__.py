"""What will go wrong, said in seconds: findings about a model, its configuration and the GPUs to run it on.

Pure arithmetic on facts that others have gathered: no weights are read, no CUDA context is made, and neither
torch nor vLLM is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from worker_vllm.doctor import capability, compatibility, fit, memory, topology, versions
from worker_vllm.doctor.case import Case
from worker_vllm.doctor.finding import OF_THE_CONFIGURATION, Finding, gravest_first
from worker_vllm.doctor.hardware import Hardware, asked_for, this_machine
from worker_vllm.doctor.report import Diagnosis
from worker_vllm.errors import ConfigurationError, EngineStartError
from worker_vllm.models.facts import ModelFacts

if TYPE_CHECKING:
    from worker_vllm.configuration import Configuration
    from worker_vllm.configuration.arguments import ArgumentTable

__all__ = [
    "Case",
    "Diagnosis",
    "Finding",
    "Hardware",
    "asked_for",
    "before_start",
    "case_of",
    "examine",
    "this_machine",
]


def case_of(
    configuration: Configuration,
    facts: ModelFacts,
    on: Hardware,
    environ: Mapping[str, str],
    table: ArgumentTable | None = None,
) -> Case:
    """The case of a resolved configuration.

    Args:
        table: vLLM's arguments, for the names of its parsers.
    """
    return Case(
        facts=facts,
        arguments={**configuration.engine, **configuration.frontend},
        hardware=on,
        environ=environ,
        parsers=table.registries if table else {},
    )


def examine(case: Case, more: list[Finding] | None = None) -> Diagnosis:
    """Everything that can be said of `case`.

    Args:
        more: findings that were made on the way to it.
    """
    pool = fit.smallest_pool(case)
    found = [
        *(more or ()),
        *versions.findings(),
        *compatibility.findings(case),
        *capability.findings(case),
        *topology.findings(case),
        *fit.findings(case, pool),
    ]
    return Diagnosis(case, tuple(gravest_first(found)), memory.budget(case), pool)


def before_start(
    configuration: Configuration, facts: ModelFacts, environ: Mapping[str, str], on: Hardware | None = None
) -> Diagnosis:
    """The diagnosis of a worker that is about to start, on this machine unless told otherwise.

    Raises:
        ConfigurationError: it cannot start with these settings, on whatever machine.
        EngineStartError: it cannot start on this one, however often it is restarted here.
    """
    # the driver has been looked at (serverless.checks)
    on = replace(on or this_machine(environ), driver_cuda=None)
    diagnosis = examine(case_of(configuration, facts, on, environ))
    if fatal := diagnosis.fatal:
        lines = [finding.in_one_line() for finding in fatal]
        if all(finding.code in OF_THE_CONFIGURATION for finding in fatal):
            raise ConfigurationError(lines)
        raise EngineStartError(" ".join(lines), permanent=True)
    return diagnosis
