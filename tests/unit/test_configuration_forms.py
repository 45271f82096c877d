"""The complete default environments of the forms that runpod's Hub and console had."""

from __future__ import annotations

import pytest

from tests.configurations import CPU, FORMS, VERSIONS, configure, form, table, warnings_about
from worker_vllm import env_names
from worker_vllm.configuration import Machine
from worker_vllm.settings import WorkerSettings

HARMFUL = {
    "block_size",
    "distributed_executor_backend",
    "enforce_eager",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "max_num_seqs",
    "max_parallel_loading_workers",
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FORMS)
def test_a_form_nobody_touched_resolves_with_warnings_alone(name: str, version: str) -> None:
    resolved = configure(form(name), version=version, machine=Machine("gpu", gpus=2))
    assert len(resolved.warnings) == 2, "one for noise, one for values that count as not chosen"
    for argument in HARMFUL:
        assert resolved.engine[argument].value == table(version).by_name[argument].default
    assert resolved.engine["tensor_parallel_size"].value == 2


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FORMS)
def test_a_form_nobody_touched_changes_nothing_of_vllm_but_what_it_means(name: str, version: str) -> None:
    resolved = configure(form(name), version=version)
    defaults = {argument.name: argument.default for argument in table(version).arguments}
    changed = {
        argument: effective.value
        for argument, effective in resolved.chosen().items()
        if effective.value != defaults[argument] and (effective.value or defaults[argument])
    }
    allowed = {"model", "served_model_name"}
    if name == "hub-new":
        # auto: the longest context that fits; and what vLLM does anyway, where the model allows it
        allowed |= {"max_model_len", "enable_chunked_prefill"}
    assert changed.keys() == allowed


@pytest.mark.parametrize("name", FORMS)
def test_a_form_nobody_touched_leaves_the_workers_settings_at_their_defaults(name: str) -> None:
    concurrency = 30 if name.startswith("hub") else 300
    assert configure(form(name)).worker == WorkerSettings(max_concurrency=concurrency)


@pytest.mark.parametrize("name", FORMS)
def test_every_variable_of_a_form_does_something_or_is_spoken_of(name: str) -> None:
    """With a value of its own, not the form's default: nothing is ignored in silence."""
    resolved = configure(form(name))
    told = " ".join(resolved.warnings)
    used = {effective.variable for effective in resolved.chosen().values()}
    used |= {effective.variable for effective in resolved.worker_effective.values()}
    worker = {"DEFAULT_BATCH_SIZE", "DEFAULT_MIN_BATCH_SIZE", "DEFAULT_BATCH_SIZE_GROWTH_FACTOR"}
    passed_on = {"PYTORCH_ALLOC_CONF", "VLLM_USE_DEEP_GEMM", *env_names.PLACES}
    # sent with what an unset variable means: vLLM logs no requests, tools are off, no ray
    same_as_unset = {"DISABLE_LOG_REQUESTS", "GUIDED_DECODING_BACKEND", "WORKER_USE_RAY"}
    sent = {variable for variable, text in form(name).items() if text}
    assert {v for v in sent - used - worker - passed_on - same_as_unset if v not in told} == set()


def test_on_a_cpu_the_profile_fills_in_what_the_form_did_not_choose() -> None:
    eager = configure(form("hub-old"), machine=CPU).engine["enforce_eager"]
    assert (eager.value, eager.source) == (True, "profile")


@pytest.mark.parametrize("name", ["console-2025", "hub-2025", "hub-new"])
def test_on_a_cpu_a_form_that_asks_for_compilation_gets_it_with_a_warning(name: str) -> None:
    resolved = configure(form(name), machine=CPU)
    assert resolved.engine["enforce_eager"].value is False
    assert warnings_about("ENFORCE_EAGER=false: compiled bfloat16", resolved)
