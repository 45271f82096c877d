"""What a benchmark found, as frozen values with a JSON round trip; and the median figures that tables
show."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from worker_vllm.bench.startup import Start
from worker_vllm.bench.stats import LoadFigures, median
from worker_vllm.bench.usage import Usage
from worker_vllm.bench.workload import Workload

BUSY_LIMIT = 0.9
"""A process of the measuring side that computes for a larger share of a run may have been its limit."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One target under one workload in one round.

    Attributes:
        target, workload, round_number: which run this is; `workload` is the workload's label.
        load: what the clients saw.
        client_busy: the share of the run that the busiest client process computed.
        usage: what it cost; None for a target whose processes are not ours.
    """

    target: str
    workload: str
    round_number: int
    load: LoadFigures
    client_busy: float
    usage: Usage | None

    @property
    def frontend_microseconds_per_token(self) -> float | None:
        """CPU time of the front end over the tokens of all answers."""
        if self.usage is None or not self.load.tokens:
            return None
        return self.usage.frontend_cpu_seconds / self.load.tokens * 1e6

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Run:
        """The inverse of `dataclasses.asdict`."""
        usage = value["usage"]
        return cls(
            **{
                **value,
                "load": LoadFigures.from_json(value["load"]),
                "usage": None if usage is None else Usage(**usage),
            }
        )


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that one command found, with what it ran under.

    Attributes:
        settings: the command line's meaning: model, engine arguments, targets with their commands, round
            trip.
        versions: of what was installed.
        machine: processor, memory, GPU.
        baseline: the target that ratios refer to.
        targets: names, in the order of the command line.
        workloads: in the order of the command line.
        starts: every start that was timed.
        runs: every measured run, in the order in which they were made.
    """

    settings: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    baseline: str
    targets: tuple[str, ...]
    workloads: tuple[Workload, ...]
    starts: tuple[Start, ...]
    runs: tuple[Run, ...]

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The inverse of `to_json`."""
        value = json.loads(text)
        return cls(
            **{
                **value,
                "targets": tuple(value["targets"]),
                "workloads": tuple(Workload.from_json(one) for one in value["workloads"]),
                "starts": tuple(Start.from_json(one) for one in value["starts"]),
                "runs": tuple(Run.from_json(one) for one in value["runs"]),
            }
        )

    def runs_of(self, target: str, workload: str) -> list[Run]:
        """The runs of one target under one workload, by round."""
        return [run for run in self.runs if run.target == target and run.workload == workload]

    def middle(self, target: str, workload: str, figure: Callable[[Run], float | None]) -> float | None:
        """The median over the rounds of one figure; None where no round has it."""
        return median(_known(figure(run) for run in self.runs_of(target, workload)))

    def ratio(
        self, target: str, baseline: str, workload: str, figure: Callable[[Run], float | None]
    ) -> float | None:
        """The median over the rounds of one target's figure over another's in the same round."""
        others = {run.round_number: figure(run) for run in self.runs_of(baseline, workload)}
        quotients = []
        for run in self.runs_of(target, workload):
            mine, other = figure(run), others.get(run.round_number)
            if mine is not None and other:
                quotients.append(mine / other)
        return median(quotients)

    def warnings(self) -> list[str]:
        """What a reader must know before believing a figure, one sentence each."""
        found = []
        for run in self.runs:
            where = f"{run.target}, {run.workload}, round {run.round_number + 1}"
            if run.load.failed:
                found.append(f"{where}: {run.load.failed} requests failed, the first with: {run.load.error}")
            if run.client_busy > BUSY_LIMIT and run.usage is not None and run.target not in self._own_clients:
                found.append(f"{where}: a client process was busy {run.client_busy:.0%} of the time")
            if run.usage is not None and run.usage.platform_busy > BUSY_LIMIT:
                found.append(
                    f"{where}: the local platform was busy {run.usage.platform_busy:.0%} of the time"
                )
        return found

    @property
    def _own_clients(self) -> set[str]:
        """Targets whose requests are made inside the measured process."""
        return set(self.settings.get("inside", ()))


def tokens_per_second(run: Run) -> float | None:
    """Tokens of all answers per second of the run; None when none was answered."""
    return run.load.tokens_per_second or None


def ttft_p50(run: Run) -> float | None:
    """The median time to the first token."""
    return run.load.ttft.p50


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
