"""Well-known models on well-known GPUs: what the doctor must say, and must not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cases import about, case, examine, facts, found
from tests.model_shapes import CONFIGS
from worker_vllm import doctor
from worker_vllm.doctor import fit
from worker_vllm.models import Weights

V100 = {"cuda-without-capability": "warning", "attention-slow": "note"}
V100_BFLOAT16 = V100 | {"bfloat16": "warning"}
TOO_LARGE = {"weights-too-large": "fatal", "pool": "note"}
PERHAPS_TOO_LARGE = {"weights-too-large": "warning", "pool": "note"}
TOO_LONG = {"context-does-not-fit": "fatal", "pool": "note"}
PARSERS = {"tool-parser": "note", "reasoning-parser": "note"}

EXPECTED: dict[tuple[str, str], dict[str, str]] = {
    ("llama-3.1-8b", "1xV100"): V100_BFLOAT16 | TOO_LARGE,
    ("llama-3.1-8b", "1xA4000"): TOO_LARGE,
    ("llama-3.1-8b", "1xL4"): TOO_LONG,
    ("llama-3.1-8b", "1xA100"): {},
    ("llama-3.1-8b", "2xH200"): {},
    ("llama-3.3-70b", "1xH100"): TOO_LARGE,
    ("llama-3.3-70b", "2xH100"): TOO_LONG,
    ("llama-3.3-70b", "4xH100"): {},
    ("mistral-7b-v0.1", "1xA4000"): PERHAPS_TOO_LARGE,
    ("mistral-7b-v0.1", "1xL4"): {},
    ("qwen2.5-7b", "1xL4"): {},
    ("qwen2.5-7b", "8xH200"): {"gpus-idle": "warning"},
    # it would fit if a step needed no memory of its own
    ("qwen3-8b", "1xRTX 4090"): {"context-does-not-fit": "warning", "pool": "note"},
    ("qwen3-8b", "1xH100"): {},
    ("qwen3-235b-a22b-fp8", "8xA100"): {"quantization-emulated": "note", "parallel-quantization": "warning"},
    ("qwen3-235b-a22b-fp8", "4xH200"): {},
    ("gemma-3-4b", "1xV100"): V100 | {"float16-unstable": "warning"} | PERHAPS_TOO_LARGE,
    ("gemma-3-4b", "1xL4"): {},
    ("mixtral-8x7b", "1xH100"): TOO_LARGE,
    ("mixtral-8x7b", "2xH100"): {},
    ("deepseek-v3", "8xH100"): TOO_LARGE,
    ("deepseek-v3", "8xH200"): {},
    ("deepseek-v3", "8xB200"): {},
    ("deepseek-v3", "8xA100"): TOO_LARGE | {"mla-capability": "note", "quantization-emulated": "note"},
    ("gpt-oss-20b", "1xV100"): V100 | PERHAPS_TOO_LARGE | PARSERS | {"quantization-capability": "fatal"},
    ("gpt-oss-20b", "1xH100"): PARSERS | {"quantization-emulated": "note"},
    ("gpt-oss-20b", "1xB200"): PARSERS,
    ("nemotron-h-8b", "1xA4000"): TOO_LARGE,
    ("nemotron-h-8b", "1xL40S"): {},
    ("jamba-1.5-mini", "1xH200"): {"tool-parser": "note"},
    ("granite-4.0-h-small", "1xH100"): {"tool-parser": "note"},
    ("qwen3-next-80b", "2xH200"): {},
    ("whisper-large-v3", "1xT4"): {"attention-slow": "note"},
    ("whisper-large-v3", "1xA4000"): {},
    ("qwen2.5-vl-7b", "1xL4"): TOO_LONG,
    ("qwen2.5-vl-7b", "1xL40S"): {},
    ("bge-large", "1xA4000"): {},
}


@pytest.mark.parametrize(("name", "gpus"), EXPECTED)
def test_findings(name: str, gpus: str) -> None:
    assert found(examine(name, gpus)) == EXPECTED[name, gpus]


@pytest.mark.parametrize("gpus", ["2xH200", "7xH200", "8xH200"])
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_the_number_of_gpus_that_the_worker_chooses_itself_divides_every_model(name: str, gpus: str) -> None:
    codes = found(examine(name, gpus))
    assert not {"parallel-heads", "parallel-kv-heads", "parallel-vocabulary", "gpus-missing"} & codes.keys()


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("whisper-large-v3", (1, "AMPERE_16")),
        ("qwen2.5-7b", (1, "AMPERE_24")),
        ("llama-3.1-8b", (1, "AMPERE_48")),  # 131072 tokens of context need more than 24 GB
        ("mixtral-8x7b", (1, "HOPPER_141")),
        ("llama-3.3-70b", (2, "HOPPER_141")),
        ("deepseek-v3", (8, "HOPPER_141")),
    ],
)
def test_the_smallest_choice_that_would_do(name: str, choice: tuple[int, str]) -> None:
    assert fit.smallest_pool(case(name)) == choice


def test_a_shorter_context_makes_a_smaller_choice_do() -> None:
    assert fit.smallest_pool(case("llama-3.1-8b", MAX_MODEL_LEN="8192")) == (1, "AMPERE_24")


def test_where_nothing_does_nothing_is_recommended() -> None:
    huge = facts("deepseek-v3", weights=Weights("safetensors", {"x.safetensors": 3 * 10**12}))
    assert examine("deepseek-v3", "8xH200", model=huge).pool is None


def test_too_long_a_context_is_told_with_the_longest_that_fits() -> None:
    diagnosis = examine("llama-3.1-8b", "1xL4")
    text = about("context-does-not-fit", diagnosis)
    assert "one request of 131,072 tokens needs 16.0 GiB of KV cache" in text
    assert "128.0 KiB a token" in text
    longest = diagnosis.as_data()["memory"]["longest"]
    assert 24_000 < longest < 32_000
    shorter = examine("llama-3.1-8b", "1xL4", MAX_MODEL_LEN=str(longest))
    assert "context-does-not-fit" not in found(shorter)


def test_an_fp8_cache_holds_twice_as_much() -> None:
    plain, small = (
        examine("llama-3.1-8b", "1xL40S", **variables).as_data()["memory"]
        for variables in ({}, {"KV_CACHE_DTYPE": "fp8"})
    )
    assert small["tokens"] == pytest.approx(2 * plain["tokens"], rel=0.001)
    assert small["requests_at_once"] == pytest.approx(2 * plain["requests_at_once"], rel=0.01)


def test_where_the_share_was_chosen_small_a_larger_one_is_a_remedy() -> None:
    for share in ("0.3", "0.25"):  # the context does not fit, or nothing beside the weights
        diagnosis = examine("llama-3.1-8b", "1xA40", GPU_MEMORY_UTILIZATION=share)
        assert any("or raise GPU_MEMORY_UTILIZATION" in finding.remedy for finding in diagnosis.findings)
    assert "raise" not in about("context-does-not-fit", examine("llama-3.1-8b", "1xL4"))
    steps = examine("qwen2.5-7b", "1xL4", MAX_NUM_SEQS="50000")
    assert "or lower MAX_NUM_SEQS" in about("weights-too-large", steps)


def test_a_context_that_vllm_fits_itself_is_no_fault() -> None:
    assert found(examine("llama-3.1-8b", "1xL4", MAX_MODEL_LEN="auto"))["context-does-not-fit"] == "note"


def test_quantizing_while_loading_halves_the_weights() -> None:
    plain = examine("llama-3.1-8b", "1xL4").as_data()["memory"]["weights"]
    halved = examine("llama-3.1-8b", "1xL4", QUANTIZATION="fp8").as_data()["memory"]["weights"]
    assert plain / 2 < halved < 0.6 * plain


def test_weights_that_only_the_configuration_tells_are_never_fatal() -> None:
    unknown = facts("llama-3.3-70b", CONFIGS["llama-3.3-70b"])
    diagnosis = examine("llama-3.3-70b", "1xH100", model=unknown)
    assert found(diagnosis)["weights-too-large"] == "warning"
    assert "the files' sizes are not known" in about("weights-too-large", diagnosis)


@pytest.mark.parametrize(
    "variables",
    [
        {"DATA_PARALLEL_SIZE": "8", "ENABLE_EXPERT_PARALLEL": "true"},  # the copies share the experts
        {"HF_OVERRIDES": '{"num_hidden_layers": 4}'},
        {"LOAD_FORMAT": "dummy"},
    ],
)
def test_what_spreads_or_cuts_the_weights_makes_nothing_fatal(variables: dict[str, str]) -> None:
    assert "fatal" not in found(examine("deepseek-v3", "8xH200", **variables)).values()


def test_layers_that_only_a_draft_needs_make_nothing_fatal() -> None:
    """DeepSeek V3's files hold 17 GB that vLLM leaves out unless it drafts with them."""
    share = int(doctor.asked_for("8xH200").devices[0].memory * 0.92)
    model = facts("deepseek-v3", weights=Weights("safetensors", {"x.safetensors": share * 8}))
    assert found(examine("deepseek-v3", "8xH200", model=model))["weights-too-large"] == "warning"


def test_a_cache_that_several_gpus_share_makes_nothing_fatal() -> None:
    variables = {"DECODE_CONTEXT_PARALLEL_SIZE": "8", "MAX_MODEL_LEN": "163840"}
    tight = examine("deepseek-v3", "8xH200", GPU_MEMORY_UTILIZATION="0.61", **variables)
    assert found(tight)["context-does-not-fit"] == "warning"


def test_a_longrope_model_is_served_at_its_first_length() -> None:
    """Phi-3's 128k variants: vLLM takes 4096 of them unless MAX_MODEL_LEN says otherwise."""
    rope = {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}
    config = {
        **CONFIGS["llama-3.1-8b"],
        "rope_scaling": rope,
        "original_max_position_embeddings": 4096,
    }
    short = case("llama-3.1-8b", model=facts("llama-3.1-8b", config))
    assert short.max_model_len == 4096
    long = case("llama-3.1-8b", model=facts("llama-3.1-8b", config), MAX_MODEL_LEN="100000")
    assert long.max_model_len == 100_000


@pytest.mark.parametrize(
    "variables", [{"CPU_OFFLOAD_GB": "80"}, {"KV_CACHE_MEMORY_BYTES": str(2**34)}, {"QUANTIZATION": "fp8"}]
)
def test_what_changes_the_weights_on_the_card_makes_nothing_fatal(variables: dict[str, str]) -> None:
    assert found(examine("llama-3.3-70b", "1xH100", **variables)).get("weights-too-large") != "fatal"


def test_memory_that_another_process_holds_is_a_warning_with_a_share_that_fits() -> None:
    hardware = doctor.asked_for("1xH100")
    taken = replace(hardware, devices=(replace(hardware.devices[0], free=40 * 2**30),))
    diagnosis = examine("qwen3-8b", taken)
    assert found(diagnosis) == {"gpu-memory-in-use": "warning"}
    assert "set GPU_MEMORY_UTILIZATION=0.48" in about("gpu-memory-in-use", diagnosis)


def test_on_a_cpu_only_what_applies_is_said() -> None:
    cpu = doctor.Hardware("cpu", host_memory=8 * 2**30)
    assert found(examine("whisper-large-v3", cpu)) == {}
    large = examine("llama-3.1-8b", cpu, VLLM_CPU_KVCACHE_SPACE="2", MAX_MODEL_LEN="4096")
    assert found(large) == {"host-memory": "warning"}
    long = examine("llama-3.1-8b", replace(cpu, host_memory=2**36), VLLM_CPU_KVCACHE_SPACE="2")
    assert found(long) == {"context-does-not-fit": "fatal"}
    assert "VLLM_CPU_KVCACHE_SPACE=16" in about("context-does-not-fit", long)


@pytest.mark.parametrize("text", ["much", "1.5"])
def test_a_cache_size_that_vllm_cannot_read_is_said(text: str) -> None:
    cpu = doctor.Hardware("cpu", host_memory=2**36)
    diagnosis = examine("llama-3.1-8b", cpu, VLLM_CPU_KVCACHE_SPACE=text)
    assert found(diagnosis) == {"host-memory": "fatal"}
    assert f"VLLM_CPU_KVCACHE_SPACE='{text}' is no whole number" in about("host-memory", diagnosis)


def test_without_a_gpu_to_look_at_only_the_configuration_is_judged() -> None:
    diagnosis = examine("llama-3.3-70b", doctor.Hardware("gpu"), MAX_MODEL_LEN="1000000")
    assert found(diagnosis) == {"max-model-len": "fatal"}
    assert "none is visible here" in diagnosis.as_text()
    assert "2 x HOPPER_141" in examine("llama-3.3-70b", doctor.Hardware("gpu")).as_text()
