"""The account of a run: what became of each job, and whether that is right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.chaos.arena import Arena
from tests.chaos.cases import Case, Reading, read
from tests.chaos.plan import JobPlan, Plan, Shot
from tests.chaos.tap import Attempt, History, within

ENGINE = ("engine", "executor")
DIES_WITH = {"EngineDeadError": ENGINE, "ServiceUnavailableError": ("worker SIGTERM",)}
"""Error types that a job may end with while such an incident goes on; its client sends it again."""
CUTS_STREAM = ("reset_before", "reset_after", "hold", "status 502")
EXIT_CODES = {"engine": 4, "executor": 4, "worker SIGKILL": 137, "worker SIGTERM": 0}
SHORTEST_LIMIT_MS = 5000
"""RunPod's shortest executionTimeout: the worker gives up half a second before."""
FAIL_SECONDS, EXIT_SECONDS = 5.0, 10.0


@dataclass
class Entry:
    """One job's account.

    Attributes:
        tries: the platform's job objects, one per time that it was sent.
        cancel_reply: the state that /cancel answered with, if it was called.
    """

    plan: JobPlan
    tries: list[dict[str, Any]] = field(default_factory=list)
    cancel_reply: str | None = None
    seconds: float = 0.0


def error_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """A FAILED job's error object; what is no JSON is the platform's own word."""
    try:
        return dict(json.loads(job.get("error") or ""))
    except ValueError:
        return {"type": "platform", "code": 0, "message": job.get("error")}


class Ledger:
    """All entries of a run, and what is wrong with them."""

    def __init__(self, plan: Plan, scene: Arena, texts: Mapping[Case, str]) -> None:
        self.plan = plan
        self.entries: list[Entry] = []
        self.problems: list[str] = []
        self.seconds = 0.0
        self._scene = scene
        self._texts = texts

    def may_try_again(self, job: Mapping[str, Any]) -> bool:
        """Whether a job failed because of something that was done to the worker meanwhile."""
        if job["status"] != "FAILED":
            return False
        victims = DIES_WITH.get(error_of(job)["type"], ())
        windows = [i.window for i in self._scene.incidents if i.name.startswith(victims)] if victims else []
        attempts = self._history(job).attempts
        return bool(attempts) and within(attempts[-1], windows)

    def judge(self) -> list[str]:
        """Look at every job, incident and remain; the problems, none where all is right."""
        for entry in self.entries:
            self._judge_entry(entry)
        for job_id, history in self._scene.tap.histories.items():
            if history.ends != 1:
                self._problem(job_id, f"reached an end {history.ends} times")
            self._judge_losses(job_id, history)
        self._judge_incidents()
        for event in self.plan.events:
            if isinstance(event.what, Shot) and not any(map(event.what.is_named, self._scene.tap.hits)):
                self._problem(event.name, "never struck")
        deaths = [i.window for i in self._scene.incidents if i.name.startswith(ENGINE)]
        for at, line in self._scene.log:
            loud = "Traceback" in line or "never retrieved" in line
            if loud and not any(since <= at <= until + 0.5 for since, until in deaths):
                self._problem("the worker's log", f"at {at:.2f}: {line}")
        self.problems += [f"left behind: {what}" for what in self._scene.remains]
        return self.problems

    def _judge_entry(self, entry: Entry) -> None:
        where = f"job {entry.plan.number}"
        if not entry.tries:
            return self._problem(where, "has no end")
        for job in entry.tries:
            self._judge_stream(entry, job)
        last = entry.tries[-1]
        status, code = last["status"], error_of(last)["code"] if "error" in last else None
        expected = {
            "answered": ("COMPLETED",),
            "refused": ("FAILED",),
            "too slow": ("FAILED", "TIMED_OUT", "COMPLETED"),
            "cancelled": ("CANCELLED", "COMPLETED"),
        }[entry.plan.fate]
        if status not in expected and not (entry.plan.fate == "cancelled" and self.may_try_again(last)):
            self._problem(where, f"ended {status} ({last.get('error')}), not {' or '.join(expected)}")
        if entry.plan.fate == "refused" and code != 400:
            self._problem(where, f"was refused with {code}")
        if entry.plan.fate == "too slow" and status == "FAILED" and code != 504:
            self._problem(where, f"was too slow and failed with {code}")
        if entry.plan.fate == "too slow" and status == "TIMED_OUT" and self._could_say_so(last):
            self._problem(where, "was too slow, and the platform noticed before the worker")
        if entry.cancel_reply and entry.cancel_reply != status:
            self._problem(where, f"answered {entry.cancel_reply} to the cancel and then ended {status}")
        if status == "COMPLETED" and not self._is_exact(entry, last):
            self._problem(where, f"has the wrong text: {last['output']!r:.500}")
        return None

    def _could_say_so(self, job: Mapping[str, Any]) -> bool:
        """Whether nothing kept the worker from failing a job before the platform's time ran out. A pause
        does: the platform's clock goes on."""
        history = self._history(job)
        last, disturbed = history.attempts[-1], [i.window for i in self._scene.incidents]
        is_usual = self._scene.target.too_slow_ms >= SHORTEST_LIMIT_MS and not history.faults
        return is_usual and last.handed and not within(last, disturbed)

    def _judge_stream(self, entry: Entry, job: Mapping[str, Any]) -> None:
        """Each attempt's stream is the exact text up to where it ends, and says so where that is not the
        whole."""
        whole = self._texts.get(entry.plan.case)
        if not entry.plan.stream or entry.plan.fate == "refused" or whole is None:
            return
        history, where = self._history(job), f"job {entry.plan.number}"
        for attempt in history.attempts:
            reading = last_run(read(attempt.chunks), whole, history)
            if not whole.startswith(reading.text):
                self._problem(where, f"streamed the wrong text: {reading.text!r:.300}")
        if job["status"] == "COMPLETED":
            reading = last_run(read(history.attempts[-1].chunks), whole, history)
            is_whole = reading.text == whole and (entry.plan.case.kind == "native" or reading.closed)
            was_cut = [
                name for name in history.faults if "job-stream" in name and name.startswith(CUTS_STREAM)
            ]
            if not is_whole and not was_cut:
                self._problem(where, f"has a stream that ends early: {reading}")
            if not is_whole and len(was_cut) == 1 and (reading.error or {}).get("code") != 503:
                self._problem(where, f"has a stream that ends early without a word: {reading}")

    def _judge_losses(self, job_id: str, history: History) -> None:
        """A job is picked up again only after something that took it from its worker."""
        kills = [i.window for i in self._scene.incidents if i.name == "worker SIGKILL"]
        for attempt in history.attempts[:-1]:
            explained = not attempt.handed or history.stopped or (attempt.lost and within(attempt, kills))
            if not explained:
                self._problem(job_id, f"was lost in attempt {attempt.number}: {self._how(attempt)}")

    def _how(self, attempt: Attempt) -> str:
        during = [i.name for i in self._scene.incidents if within(attempt, [i.window])]
        return f"with its worker: {attempt.lost}, during {during}"

    def _judge_incidents(self) -> None:
        caused = [incident.exit for incident in self._scene.incidents if incident.exit is not None]
        for exit in self._scene.pool.exits[:-1]:  # the last one is the run's end
            if not any(exit is one for one in caused):
                self._problem("the worker", f"ended unasked: {exit}")
        for incident in self._scene.incidents:
            if incident.exit is None:
                continue
            code = next(code for name, code in EXIT_CODES.items() if incident.name.startswith(name))
            if incident.exit.code != code:
                self._problem(incident.name, f"exit code {incident.exit.code}, not {code}")
            if incident.exit.left and incident.name != "worker SIGKILL":
                self._problem(incident.name, f"left {incident.exit.left}")
            if incident.name.startswith(ENGINE):
                stall = self._scene.target.stall_seconds if "SIGSTOP" in incident.name else 0.0
                (failed, which), exited = self.last_end(incident.running, incident.since), incident.window
                if failed > stall + FAIL_SECONDS:
                    self._problem(incident.name, f"jobs failed after {failed:.1f} s: {which}")
                if exited[1] - exited[0] > stall + EXIT_SECONDS:
                    self._problem(incident.name, f"exit after {exited[1] - exited[0]:.1f} s")

    def last_end(self, job_ids: Iterable[str], since: float) -> tuple[float, str]:
        """How long the last of these jobs took to its end, from then on, and which it is. A job whose
        hand-over was lost on its way is nobody's until it comes again."""
        ends = [
            (attempt.ended_at - since, f"job {job_id}, attempt {attempt.number}, {history.faults}")
            for job_id, history in ((job_id, self._scene.tap.histories[job_id]) for job_id in job_ids)
            if not history.stopped
            for attempt in history.attempts
            if attempt.handed and attempt.ended_at and attempt.taken_at <= since <= attempt.ended_at
        ]
        return max(ends, default=(0.0, ""))

    def _is_exact(self, entry: Entry, job: Mapping[str, Any]) -> bool:
        whole = self._texts.get(entry.plan.case)
        return whole is None or read(job["output"]).text == whole

    def _history(self, job: Mapping[str, Any]) -> History:
        return self._scene.tap.histories[job["id"]]

    def _problem(self, where: str, what: str) -> None:
        self.problems.append(f"{where} {what}")

    def lines(self, entries: Iterable[Entry] | None = None) -> list[str]:
        """A line per job: what was asked, and each try's end with its pick-ups."""
        lines = []
        for entry in self.entries if entries is None else entries:
            plan, ends = entry.plan, []
            for job in entry.tries:
                history = self._history(job)
                code = f" {error_of(job)['code']}" if "error" in job else ""
                faults = f" [{', '.join(history.faults)}]" if history.faults else ""
                ends.append(f"{job['status']}{code} pick-ups={len(history.attempts)}{faults}")
            how = "stream" if plan.stream else "plain"
            fate = f"{plan.fate} {plan.cancel_in}".strip()
            lines.append(
                f"{plan.number:5d} {plan.case.kind:11s} {how:6s} {plan.case.tokens:5d} {fate:23s} "
                f"{entry.seconds:6.2f} s  {'; '.join(ends)}"
            )
        return lines

    def log(self) -> list[str]:
        """The worker's lines, each with its time, and where each incident began and ended."""
        lines = list(self._scene.log)
        lines += [(incident.since, f"=== {incident.name}") for incident in self._scene.incidents]
        lines += [(incident.until, f"=== end of {incident.name}") for incident in self._scene.incidents]
        return [f"{at:.2f} {line}" for at, line in sorted(lines, key=lambda entry: entry[0])]

    def summary(self) -> list[str]:
        """What happened in all: states, incidents with their figures, faults."""
        scene = self._scene
        states = Counter(entry.tries[-1]["status"] for entry in self.entries if entry.tries)
        pickups = sum(len(history.attempts) for history in scene.tap.histories.values())
        sent = sum(len(entry.tries) for entry in self.entries)
        longest = max((entry.seconds for entry in self.entries), default=0.0)
        told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        lines = [
            f"seed {self.plan.seed}, {scene.target.name}: {len(self.entries)} jobs in {self.seconds:.0f} s: "
            f"{told}",
            f"sent {sent} times, picked up {pickups} times; the longest took {longest:.1f} s to its end",
            "results: {accepted} accepted, {duplicate} repeated, {late} late".format_map(scene.queue.counts),
        ]
        for incident in scene.incidents:
            took = incident.until - incident.since
            line = f"{incident.name}: {len(incident.running)} jobs running, {took:.1f} s"
            if incident.exit is not None:
                failed, _ = self.last_end(incident.running, incident.since)
                line += f" to exit code {incident.exit.code}, jobs ended within {failed:.1f} s"
                line += f", serving again {incident.back_seconds:.1f} s later"
                line += f", left {list(incident.exit.left)}" if incident.exit.left else ""
            lines.append(line)
        hits = ", ".join(f"{name} {count}x" for name, count in sorted(scene.tap.hits.items()))
        return [*lines, f"faults that struck: {hits}", f"problems: {len(self.problems)}"]


def last_run(reading: Reading, whole: str, history: History) -> Reading:
    """The reading without what an earlier run in the same attempt has streamed, if there was one."""
    text = reading.text
    if whole.startswith(text) or not history.may_have_run_twice:
        return reading
    for cut in range(1, len(text)):
        if whole.startswith(text[:cut]) and whole.startswith(text[cut:]):
            return replace(reading, text=text[cut:])
    return reading
