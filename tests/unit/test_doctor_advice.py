"""The doctor's findings one by one: topology, capability, configuration, versions."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cases import about, examine, facts, found
from tests.configurations import VERSIONS, table
from tests.documents import ROOT, rows
from worker_vllm import doctor
from worker_vllm.doctor import families, gpus, versions
from worker_vllm.doctor.finding import CODES, LEVELS, Finding
from worker_vllm.models import AdapterFacts

LLAMA = "llama-3.1-8b"
DOCTOR = ROOT / "docs" / "doctor.md"


def test_tensor_parallel_must_divide_the_heads() -> None:
    diagnosis = examine(LLAMA, "3xH100", TENSOR_PARALLEL_SIZE="3")
    assert found(diagnosis)["parallel-heads"] == "fatal"
    assert "set TENSOR_PARALLEL_SIZE to 2 or 1" in about("parallel-heads", diagnosis)


def test_kv_heads_and_gpus_must_divide_each_other() -> None:
    diagnosis = examine("qwen2.5-7b", "7xH100", TENSOR_PARALLEL_SIZE="7")
    assert found(diagnosis)["parallel-kv-heads"] == "warning"
    assert "parallel-kv-heads" not in found(examine(LLAMA, "16xH100", TENSOR_PARALLEL_SIZE="16"))


def test_the_vocabulary_is_divided_as_vllm_pads_it() -> None:
    """Whisper's 51866 become 51904, which four GPUs share and five do not, though five divide its heads."""
    assert "parallel-vocabulary" not in found(examine("whisper-large-v3", "4xL4", TENSOR_PARALLEL_SIZE="4"))
    assert "51,904" in about(
        "parallel-vocabulary", examine("whisper-large-v3", "5xL4", TENSOR_PARALLEL_SIZE="5")
    )


def test_gpus_that_are_asked_for_must_be_there() -> None:
    diagnosis = examine(LLAMA, "2xH100", TENSOR_PARALLEL_SIZE="2", PIPELINE_PARALLEL_SIZE="2")
    assert found(diagnosis)["gpus-missing"] == "fatal"
    text = about("gpus-missing", diagnosis)
    assert "TENSOR_PARALLEL_SIZE=2 x PIPELINE_PARALLEL_SIZE=2 needs 4 GPUs, and there are 2" in text
    assert "set TENSOR_PARALLEL_SIZE=2 and PIPELINE_PARALLEL_SIZE=1, or give" in text
    copies = examine(LLAMA, "2xH100", DATA_PARALLEL_SIZE="3")
    assert "set DATA_PARALLEL_SIZE=2, or give" in about("gpus-missing", copies)


def test_gpus_that_do_nothing_are_named_with_what_they_cost() -> None:
    """A two-GPU endpoint that uses one (worker-vllm issue 230)."""
    diagnosis = examine(LLAMA, "2xH100", VLLM_ARG_TENSOR_PARALLEL_SIZE="1")
    assert found(diagnosis) == {"gpus-idle": "warning"}
    assert "set TENSOR_PARALLEL_SIZE=2" in about("gpus-idle", diagnosis)


def test_where_heads_do_not_divide_fewer_gpus_are_the_remedy() -> None:
    text = about("gpus-idle", examine("whisper-large-v3", "3xL4"))
    assert "give the endpoint 2 GPUs a worker" in text
    assert "TENSOR_PARALLEL_SIZE=3" not in text


def test_pipeline_parallel_on_v100_without_nvlink_is_stopped_before_the_model_loads() -> None:
    diagnosis = examine(LLAMA, "4xV100", PIPELINE_PARALLEL_SIZE="4")
    assert found(diagnosis)["pipeline-without-peer-access"] == "fatal"
    text = about("pipeline-without-peer-access", diagnosis)
    assert "dies minutes later" in text
    assert "_accelerator_group" in text
    assert "set TENSOR_PARALLEL_SIZE=4 and PIPELINE_PARALLEL_SIZE=1" in text


@pytest.mark.parametrize(
    ("kind", "peer_access", "level"),
    [("V100 SXM2", True, None), ("V100", None, "warning"), ("V100", True, None), ("H100", False, None)],
)
def test_a_pipeline_with_peer_access_is_let_through(
    kind: str, peer_access: bool | None, level: str | None
) -> None:
    hardware = replace(doctor.asked_for(f"4x{kind}"), peer_access=peer_access)
    codes = found(examine(LLAMA, hardware, PIPELINE_PARALLEL_SIZE="4"))
    assert codes.get("pipeline-without-peer-access") == level


def test_ray_on_one_node_is_advised_against() -> None:
    ray = {"DISTRIBUTED_EXECUTOR_BACKEND": "ray"}
    assert found(examine(LLAMA, "2xH100", **ray)) == {"ray-on-one-node": "warning"}
    assert found(examine(LLAMA, "2xH100", RAY_ADDRESS="10.0.0.1:6379", **ray)) == {}


def test_rays_timeout_means_nothing_without_a_pipeline() -> None:
    timeout = {"RAY_CGRAPH_get_timeout": "300"}
    assert found(examine(LLAMA, environ=timeout)) == {"ray-timeout": "note"}
    piped = examine(LLAMA, "2xH100", environ=timeout, PIPELINE_PARALLEL_SIZE="2")
    assert "ray-timeout" not in found(piped)


@pytest.mark.parametrize(("mebibytes", "said"), [(64, True), (8192, False)])
def test_several_gpus_need_shared_memory(mebibytes: int, said: bool) -> None:
    hardware = replace(doctor.asked_for("2xH100"), shared_memory=mebibytes << 20)
    diagnosis = examine(LLAMA, hardware)
    assert ("shared-memory" in found(diagnosis)) is said
    if said:
        assert "--ipc=host" in about("shared-memory", diagnosis)
    alone = replace(doctor.asked_for("1xH100"), shared_memory=mebibytes << 20)
    assert "shared-memory" not in found(examine(LLAMA, alone))


def test_a_driver_older_than_the_build_is_said_with_both_versions() -> None:
    hardware = replace(doctor.asked_for("1xH100"), driver_cuda=12040, torch_cuda=(13, 0))
    text = about("driver-too-old", examine(LLAMA, hardware))
    assert "CUDA 12.4" in text
    assert "13.0" in text


@pytest.mark.parametrize(
    ("asked", "torch_cuda", "level"),
    [(True, None, "warning"), (True, (13, 0), "warning"), (True, (12, 6), None), (False, (13, 0), "fatal")],
)
def test_cuda_13_has_nothing_for_a_v100(
    asked: bool, torch_cuda: tuple[int, int] | None, level: str | None
) -> None:
    hardware = replace(doctor.asked_for("1xV100"), asked=asked, torch_cuda=torch_cuda)
    assert found(examine("whisper-large-v3", hardware)).get("cuda-without-capability") == level


@pytest.mark.parametrize(
    ("dtype", "level"), [("auto", "warning"), ("bfloat16", "fatal"), ("float16", None), ("float32", None)]
)
def test_bfloat16_on_a_card_without_it(dtype: str, level: str | None) -> None:
    assert found(examine("qwen2.5-7b", "1xT4", DTYPE=dtype)).get("bfloat16") == level


def test_gemma_cannot_run_in_float16() -> None:
    assert found(examine("gemma-3-4b", "1xT4", DTYPE="float16"))["float16-unstable"] == "fatal"
    assert "float32" in about("float16-unstable", examine("gemma-3-4b", "1xT4"))


@pytest.mark.parametrize(
    ("quantization", "gpus", "expected"),
    [
        ({"quant_method": "awq", "bits": 4}, "1xV100", {"quantization-capability": "fatal"}),
        ({"quant_method": "gptq", "bits": 4}, "1xV100", {}),
        ({"quant_method": "fp8"}, "1xA100", {"quantization-emulated": "note"}),
        ({"quant_method": "fp8"}, "1xL4", {}),
        ({"quant_method": "modelopt_fp4"}, "1xH100", {"quantization-emulated": "note"}),
        ({"quant_method": "modelopt_fp4"}, "1xB200", {}),
    ],
)
def test_quantization_against_the_cards_capability(
    quantization: dict[str, Any], gpus: str, expected: dict[str, str]
) -> None:
    plain = facts(LLAMA)
    model = replace(plain, config={**plain.config, "quantization_config": quantization})
    codes = found(examine(LLAMA, gpus, model=model))
    assert {code: level for code, level in codes.items() if code.startswith("quant")} == expected


@pytest.mark.parametrize(
    ("variables", "gpus", "code", "level"),
    [
        ({"KV_CACHE_DTYPE": "fp8"}, "1xA100", "kv-cache-dtype", "warning"),
        ({"KV_CACHE_DTYPE": "fp8"}, "1xL40S", "kv-cache-dtype", None),
        ({"ATTENTION_BACKEND": "FLASH_ATTN"}, "1xT4", "attention-backend", "fatal"),
        ({"ATTENTION_BACKEND": "FLASHMLA"}, "1xA100", "attention-backend", "fatal"),
        ({"ATTENTION_BACKEND": "FLASH_ATTN"}, "1xA100", "attention-backend", None),
        ({"QUANTIZATION": "gptq"}, "1xH100", "quantization-differs", None),
    ],
)
def test_a_choice_that_the_card_does_not_bear(
    variables: dict[str, str], gpus: str, code: str, level: str | None
) -> None:
    assert found(examine("whisper-large-v3", gpus, **variables)).get(code) == level


def test_quantization_that_contradicts_the_checkpoint_is_said() -> None:
    assert found(examine("qwen3-235b-a22b-fp8", "4xH200", QUANTIZATION="awq"))["quantization-differs"]
    assert "quantization-differs" not in found(examine("qwen3-235b-a22b-fp8", "4xH200", QUANTIZATION="fp8"))


def test_a_context_above_the_models_own_is_fatal_and_the_switch_makes_it_a_warning() -> None:
    long = {"MAX_MODEL_LEN": "65536"}
    diagnosis = examine("qwen3-8b", **long)
    assert found(diagnosis)["max-model-len"] == "fatal"
    assert "set MAX_MODEL_LEN=40960" in about("max-model-len", diagnosis)
    allowed = examine("qwen3-8b", VLLM_ALLOW_LONG_MAX_MODEL_LEN="1", **long)
    assert found(allowed)["max-model-len"] == "warning"
    # vLLM's versions differ in what yarn does to the limit
    yarn = '{"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}'
    assert found(examine("qwen3-8b", HF_OVERRIDES=yarn, **long))["max-model-len"] == "warning"
    assert "max-model-len" not in found(examine("qwen3-8b", MAX_MODEL_LEN="40960"))


def test_an_adapter_of_too_high_a_rank_is_fatal() -> None:
    model = facts("qwen3-8b", adapters=(AdapterFacts("sql", "/x", rank=64),))
    diagnosis = examine("qwen3-8b", model=model)
    assert found(diagnosis) == {"adapter-rank": "fatal"}
    assert "set MAX_LORA_RANK=64" in about("adapter-rank", diagnosis)
    assert found(examine("qwen3-8b", model=model, MAX_LORA_RANK="64")) == {}


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("Qwen/Qwen3-8B", False),
        ("unsloth/qwen3-8b-bnb-4bit", False),
        ("Qwen/Qwen3-4B", True),
        ("./out", False),
    ],
)
def test_an_adapter_of_another_model_is_noted(base: str, said: bool) -> None:
    model = facts("qwen3-8b", adapters=(AdapterFacts("sql", "/x", base=base),))
    assert found(examine("qwen3-8b", model=model)) == ({"adapter-base": "note"} if said else {})


def test_an_adapter_that_cannot_be_used_ends_the_start() -> None:
    model = facts("qwen3-8b", adapters=(AdapterFacts("sql", "/x", problem="there is no such path"),))
    assert found(examine("qwen3-8b", model=model)) == {"adapter": "fatal"}


@pytest.mark.parametrize("template", [None, "{% for m in messages %}"])
def test_a_chat_template_must_be_there_and_parse(template: str | None, tmp_path: Path) -> None:
    model = facts(LLAMA, chat_template=template)
    assert found(examine(LLAMA, model=model)) == {"chat-template": "warning"}
    own = tmp_path / "template.jinja"
    own.write_text("{{ messages }}")
    assert found(examine(LLAMA, model=model, CUSTOM_CHAT_TEMPLATE=str(own))) == {}


def test_a_template_of_the_operators_own_must_be_there_and_parse_too() -> None:
    here = replace(doctor.asked_for("1xH100"), asked=False)
    nowhere = {"CUSTOM_CHAT_TEMPLATE": "/nowhere/template.jinja"}
    assert found(examine(LLAMA, **nowhere))["chat-template"] == "warning"  # the image may have it
    assert found(examine(LLAMA, here, **nowhere))["chat-template"] == "fatal"
    assert found(examine(LLAMA, here, CUSTOM_CHAT_TEMPLATE="template_of_vllm.jinja")) == {}
    broken = examine(LLAMA, CUSTOM_CHAT_TEMPLATE="{% for m in messages %}")
    assert "CUSTOM_CHAT_TEMPLATE does not parse: line 1" in about("chat-template", broken)


@pytest.mark.parametrize("name", ["whisper-large-v3", "bge-large"])
def test_models_that_hold_no_conversation_need_no_template(name: str) -> None:
    assert found(examine(name, model=facts(name, chat_template=None))) == {}


HERMES = "{% if tools %}<tool_call>{% endif %}"
THINKS = "{% if tools %}<tool_call>{% endif %}<think>"


def test_parsers_that_fit_are_named_where_none_is_set() -> None:
    diagnosis = examine("qwen3-8b", model=facts("qwen3-8b", chat_template=THINKS))
    assert found(diagnosis) == {"tool-parser": "note", "reasoning-parser": "note"}
    assert "ENABLE_AUTO_TOOL_CHOICE=true and TOOL_CALL_PARSER=hermes" in about("tool-parser", diagnosis)
    assert "set REASONING_PARSER=qwen3" in about("reasoning-parser", diagnosis)


def test_parsers_that_fit_are_not_spoken_of() -> None:
    chosen = {
        "TOOL_CALL_PARSER": "hermes",
        "ENABLE_AUTO_TOOL_CHOICE": "true",
        "REASONING_PARSER": "deepseek_r1",
    }
    assert found(examine("qwen3-8b", model=facts("qwen3-8b", chat_template=THINKS), **chosen)) == {}


def test_a_parser_of_another_family_is_a_warning() -> None:
    wrong = {"TOOL_CALL_PARSER": "mistral", "ENABLE_AUTO_TOOL_CHOICE": "true"}
    diagnosis = examine("qwen2.5-7b", model=facts("qwen2.5-7b", chat_template=HERMES), **wrong)
    assert found(diagnosis) == {"tool-parser": "warning"}
    assert "set TOOL_CALL_PARSER=hermes" in about("tool-parser", diagnosis)


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ("{{ tools }}<|python_tag|>", "llama3_json"),
        ("{{ tools }}[TOOL_CALLS]", "mistral"),
        ("{{ tools }}<tool_call><function=x><parameter=", "qwen3_coder"),
        ("{{ tools }}<｜tool▁calls▁begin｜>", "deepseek_v3"),
        ("{{ tools }}<arg_key>", "glm45"),
    ],
)
def test_a_chat_template_tells_the_parser(template: str, parser: str) -> None:
    assert families.tool_parsers("some_family", template)[0] == parser


@pytest.mark.parametrize("version", VERSIONS)
def test_every_parser_that_is_recommended_exists(version: str) -> None:
    registries = table(version).registries
    tools = {names[0] for names in families.TOOL_FAMILIES.values()}
    tools |= {names[0] for _, names in families.TOOL_MARKS}
    reasoning = {names[0] for names in families.REASONING_FAMILIES.values()}
    assert tools <= set(registries["tool_call_parser"])
    assert reasoning <= set(registries["reasoning_parser"])


def packages(installed: dict[str, str], *requirements: str) -> list[Finding]:
    return list(versions.findings(installed.get, lambda _: requirements))


def test_qwens_tokenizer_and_transformers_5_are_named_with_the_fix() -> None:
    """all_special_tokens_extended (worker-vllm issues 258 and 260)."""
    (finding,) = packages({"vllm": "0.11.0", "transformers": "5.1.0"})
    assert finding.level == "fatal"
    assert "all_special_tokens_extended" in finding.message
    assert "install transformers<5" in finding.remedy
    assert packages({"vllm": "0.26.0", "transformers": "5.1.0"}) == []
    assert packages({"vllm": "0.11.0", "transformers": "4.57.6"}) == []


def test_a_package_outside_of_vllms_own_bounds_is_a_warning() -> None:
    installed = {"vllm": "0.32.0", "transformers": "5.21.0", "tokenizers": "0.23.2", "torch": "2.11.0+cu130"}
    bounds = ("transformers<5.20.0,>=5.16.1", "tokenizers>=0.23.2", "torch==2.11.0", 'torch>=9; extra == "x"')
    (finding,) = packages(installed, *bounds)
    assert finding.level == "warning"
    assert 'install "transformers<5.20.0,>=5.16.1"' in finding.remedy


@pytest.mark.parametrize(
    ("version", "bounds", "kept"),
    [
        ("5.19.0", ">=5.16.1,<5.20.0", True),
        ("5.20.0", "<5.20.0", False),
        ("5.16", ">=5.16.1", False),
        ("2.11.0+cpu", "==2.11.0", True),
        ("2.12", "~=2.11", True),
        ("3.0", "~=2.11", False),
        ("1.0", "!=1.0", False),
        ("1.0", "", True),
    ],
)
def test_version_bounds(version: str, bounds: str, kept: bool) -> None:
    assert versions.satisfies(version, bounds) is kept


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [
        ("2xH200", 2, "H200"),
        ("h200", 1, "H200"),
        ("4 x RTX 4090", 4, "RTX 4090"),
        ("4090", 1, "RTX 4090"),
        ("A100", 1, "A100"),
        ("NVIDIA A100-SXM4-80GB", 1, "A100 SXM"),
        ("1xV100", 1, "V100"),
        ("2xAMPERE_48", 2, "A40"),
        ("H100-PCIe", 1, "H100 PCIe"),
        ("2xH100 SXM", 2, "H100"),
        ("A100 80GB x4", 4, "A100"),
        ("BLACKWELL_96", 1, "RTX PRO 6000"),
    ],
)
def test_gpus_are_asked_for_in_the_words_people_use(text: str, count: int, name: str) -> None:
    found_count, kind = gpus.read_request(text)
    assert (found_count, kind.name) == (count, name)


@pytest.mark.parametrize("text", ["", "0xH100", "2x", "xH100", "999xH100", "2xH100x2", "TPU"])
def test_what_is_no_gpu_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a number|no GPU that RunPod rents"):
        gpus.read_request(text)


def test_a_misspelt_gpu_is_met_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean H200"):
        gpus.read_request("2xH201")


def test_every_pool_has_members_and_every_id_is_one_kinds() -> None:
    assert all(gpus.members(pool) for pool in gpus.PRICES)
    ids = [name for kind in gpus.KINDS for name in kind.ids]
    assert len(ids) == len(set(ids))
    assert gpus.by_id("NVIDIA H200") is gpus.read_request("H200")[1]


def made() -> dict[str, set[str]]:
    """Code to the levels that the code gives it."""
    levels: dict[str, set[str]] = {}
    package = Path(doctor.__file__).parent
    for path in [*package.glob("*.py"), package.parent / "cli" / "doctor.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding" and len(node.args) > 1:
                code = node.args[1]
                for name in (
                    [code.value] if isinstance(code, ast.Constant) else ["tool-parser", "reasoning-parser"]
                ):
                    words = {word.value for word in ast.walk(node.args[0]) if isinstance(word, ast.Constant)}
                    levels.setdefault(str(name), set()).update(map(str, words & set(LEVELS)))
    return levels


def test_every_finding_has_a_code_that_is_described() -> None:
    assert made().keys() == CODES.keys()


def test_the_document_lists_every_code_with_its_gravest_level() -> None:
    listed = {
        cells[0].strip("`"): (cells[1], cells[2]) for cells in rows(DOCTOR.read_text()) if "`" in cells[0]
    }
    gravest = {code: next(level for level in LEVELS if level in levels) for code, levels in made().items()}
    assert listed == {code: (gravest[code], CODES[code]) for code in CODES}
