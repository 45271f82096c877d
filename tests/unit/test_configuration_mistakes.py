"""Mistakes that are found without vLLM: all at once, each with variable, value, expectation and nearest name.

Layers, as the tests name them: the parser's types and choices as recorded from vLLM, and vLLM's registries.
What vLLM's own parser and its config classes find is in tests/vllm/test_configuration.py.
"""

from __future__ import annotations

import pytest

from tests.configurations import VERSIONS, configure, problems, warnings_about


@pytest.mark.parametrize(
    ("variable", "text", "expectation"),
    [
        ("MAX_MODEL_LEN", "long", "expected a whole number such as 8192, 8k or 8K or auto"),
        ("MAX_NUM_SEQS", "1.5", "expected a whole number"),
        ("GPU_MEMORY_UTILIZATION", "90%", "expected a number"),
        ("ENFORCE_EAGER", "maybe", "expected true or false"),
        (
            "DTYPE",
            "flaot16",
            "expected one of auto, bfloat16, float, float16, float32, half; did you mean float16?",
        ),
        ("MAX_LORA_RANK", "17", "expected one of 1, 8, 16, 32, 64, 128, 256, 320, 512; did you mean 1?"),
        ("HF_OVERRIDES", "{a: 1}", "expected JSON"),
        ("LIMIT_MM_PER_PROMPT", "image", 'expected an object: {"key": value} or key=value,key=value'),
        (
            "LIMIT_MM_PER_PROMPT",
            "image=many",
            'expected a number for each kind: {"image": 2} or image=2,video=0',
        ),
        ("LORA_MODULES", "adapter", 'expected name=path, {"name": …, "path": …}, or a list of them'),
        ("LORA_MODULES", '[{"name": "a"}]', 'an adapter lacks its path: expected {"name": …, "path": …}'),
        ("COMPILATION_CONFIG", '{"mod": 3}', "unknown key 'mod'; did you mean mode?"),
        ("COMPILATION_CONFIG__mod", "3", "unknown key 'mod'; did you mean mode?"),
        ("SPECULATIVE_CONFIG", "ngram", 'expected an object: {"key": value} or key=value,key=value'),
        ("NUM_SPECULATIVE_TOKENS", "few", "expected a whole number"),
        ("ROPE_THETA", "big", "expected a number"),
        (
            "TASK",
            "embd",
            "expected one of generate, transcription, draft, embed, embedding, classify, score, reward, "
            "pooling",
        ),
        ("WORKER_USE_RAY", "maybe", "expected true or false"),
        ("DISABLE_PREFIX_CACHING", "maybe", "expected true or false"),
    ],
)
def test_parser_layer_names_variable_value_and_expectation(
    variable: str, text: str, expectation: str
) -> None:
    version = "0.33.0" if variable == "DISABLE_PREFIX_CACHING" else "0.32.0"
    assert problems({variable: text}, version=version) == (f"{variable}='{text}': {expectation}",)


@pytest.mark.parametrize(
    ("variable", "text", "hint"),
    [
        ("TOOL_CALL_PARSER", "hermess", "did you mean hermes?"),
        ("REASONING_PARSER", "deepseek_r", "did you mean deepseek_r1?"),
        ("QUANTIZATION", "compressed_tensor", "did you mean compressed-tensors?"),
        ("QUANTIZATION", "squeezellm", "vLLM dropped it; use an AWQ, GPTQ or FP8 checkpoint"),
        ("LOAD_FORMAT", "safetensor", "did you mean safetensors?"),
        ("LOAD_FORMAT", "bitsandbytes", "vLLM 0.28 dropped bitsandbytes"),
        ("QUANTIZATION", "bitsandbytes", "vLLM 0.28 dropped bitsandbytes"),
        ("TOKENIZER_MODE", "mistrall", "did you mean mistral?"),
        ("ATTENTION_BACKEND", "FLASHATTN", "did you mean FLASH_ATTN?"),
        ("SPECULATIVE_CONFIG", '{"method": "eagle4"}', "did you mean eagle"),
        ("SPECULATIVE_CONFIG", '{"method": "suffix", "num_tokens": 1}', "no such key"),
        ("SPECULATIVE_METHOD", "ngrm", "did you mean ngram?"),
    ],
)
def test_registry_layer_finds_names_that_the_parser_lets_through(variable: str, text: str, hint: str) -> None:
    (problem,) = problems({variable: text})
    assert problem.startswith(f"{variable}='")
    assert hint in problem


def test_registry_layer_knows_the_methods_that_a_newer_vllm_retired() -> None:
    config = '{"method": "medusa", "model": "org/m"}'
    assert configure(SPECULATIVE_CONFIG=config, version="0.32.0")
    (problem,) = problems(SPECULATIVE_CONFIG=config, version="0.33.0")
    assert "vLLM 0.33 dropped it; use eagle3, draft_model or ngram" in problem


@pytest.mark.parametrize("version", VERSIONS)
def test_registry_layer_takes_names_in_the_case_that_people_write(version: str) -> None:
    assert configure(ATTENTION_BACKEND="flash_attn", version=version)


def test_registry_layer_leaves_names_from_a_plugin_alone() -> None:
    assert configure(TOOL_CALL_PARSER="mine", TOOL_PARSER_PLUGIN="/plugin.py")
    assert configure(REASONING_PARSER="mine", REASONING_PARSER_PLUGIN="/plugin.py")


def test_a_name_outside_vllms_own_list_only_warns_where_others_are_allowed() -> None:
    resolved = configure(MODEL_IMPL="tranformers")
    assert warnings_about("did you mean transformers?", resolved)


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"ENABLE_AUTO_TOOL_CHOICE": "true"}, "ENABLE_AUTO_TOOL_CHOICE needs TOOL_CALL_PARSER"),
        (
            {"ENABLE_AUTO_TOOL_CHOICE": "true", "TOOL_CALL_PARSER": ""},
            "ENABLE_AUTO_TOOL_CHOICE needs TOOL_CALL_PARSER",
        ),
        ({"ENABLE_LOG_OUTPUTS": "true"}, "ENABLE_LOG_OUTPUTS needs ENABLE_LOG_REQUESTS=true"),
        (
            {"ENABLE_PER_REQUEST_METRICS": "true", "DISABLE_LOG_STATS": "true"},
            "ENABLE_PER_REQUEST_METRICS needs statistics: remove DISABLE_LOG_STATS",
        ),
        (
            {"LORA_MODULES": "a=x", "VLLM_ARG_ENABLE_LORA": "false"},
            "LORA_MODULES needs adapters switched on: remove VLLM_ARG_ENABLE_LORA",
        ),
        (
            {"MAX_NUM_BATCHED_TOKENS": "8", "MAX_NUM_SEQS": "16"},
            "MAX_NUM_BATCHED_TOKENS='8': expected at least MAX_NUM_SEQS=16",
        ),
    ],
)
def test_impossible_pairs_are_told_in_terms_of_variables(environ: dict[str, str], problem: str) -> None:
    assert problems(environ) == (problem,)


@pytest.mark.parametrize("text", ["", "  ", "None"])
def test_no_model_is_a_problem_at_once(text: str) -> None:
    (problem,) = problems({"MODEL_NAME": text})
    assert problem == "MODEL_NAME is not set: give a repository of Hugging Face, as in org/name, or a path"


def test_all_problems_are_told_at_once() -> None:
    found = problems(
        {
            "MODEL_NAME": "",
            "MAX_MODEL_LEN": "long",
            "TOOL_CALL_PARSER": "hermess",
            "MAX_CONCURRENCY": "many",
            "VLLM_EXTRA_ARGS": "--nonsense",
            "ENABLE_LOG_OUTPUTS": "true",
        }
    )
    assert len(found) == 6
    for name in (
        "MODEL_NAME",
        "MAX_MODEL_LEN",
        "TOOL_CALL_PARSER",
        "MAX_CONCURRENCY",
        "VLLM_EXTRA_ARGS",
        "ENABLE_LOG_OUTPUTS",
    ):
        assert any(problem.startswith(name) for problem in found)


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("MAX_MODLE_LEN", "MAX_MODEL_LEN"),
        ("GPU_MEM_UTILIZATION", "GPU_MEMORY_UTILIZATION"),
        ("QUANTISATION", "QUANTIZATION"),
        ("ENABLE_PREFIX_CACHE", "ENABLE_PREFIX_CACHING"),
        ("TENSOR_PARALLEL", "TENSOR_PARALLEL_SIZE"),
        ("MAX_CONCURENCY", "MAX_CONCURRENCY"),
        ("MODEL_ID", "MODEL_NAME"),
        ("BATCH_SIZE", "DEFAULT_BATCH_SIZE"),
        ("MAX_TOKENS", "DEFAULT_MAX_TOKENS"),
        ("VLLM_MAX_MODEL_LEN", "MAX_MODEL_LEN"),
        ("VLLM_LOGGING_LEVL", "VLLM_LOGGING_LEVEL"),
        ("VLLM_ARG_MAX_MODEL_LN", "VLLM_ARG_MAX_MODEL_LEN"),
        ("COMPILATION_CONFI__mode", "COMPILATION_CONFIG__mode"),
    ],
)
def test_a_name_that_looks_like_a_setting_warns_once_with_the_nearest(variable: str, near: str) -> None:
    resolved = configure({variable: "1"})
    (warning,) = warnings_about(variable, resolved)
    assert warning.endswith(f"did you mean {near}?")


def test_an_unknown_vllm_name_warns_even_without_a_near_one() -> None:
    (warning,) = configure(VLLM_XYZZY="1").warnings
    assert warning == "VLLM_XYZZY is no setting of this worker or of vLLM"


def test_a_subkey_of_something_that_has_no_keys_warns() -> None:
    (warning,) = configure(MAX_MODEL_LEN__x="1").warnings
    assert warning == "MAX_MODEL_LEN__x is no setting: MAX_MODEL_LEN is no object with keys"


@pytest.mark.parametrize(
    "environ",
    [
        {"RUNPOD_POD_ID": "x", "RUNPOD_GPU_COUNT": "1", "RUNPOD_MEM_GB": "64", "RUNPOD_DC_ID": "EU-1"},
        {
            "CUDA_VISIBLE_DEVICES": "0",
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NCCL_DEBUG": "INFO",
            "CUDA_VERSION": "13",
        },
        {
            "PYTORCH_ALLOC_CONF": "expandable_segments:True",
            "TORCH_CUDA_ARCH_LIST": "9.0",
            "OMP_NUM_THREADS": "1",
        },
        {
            "HF_HOME": "/x",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        },
        {
            "PATH": "/bin",
            "HOME": "/root",
            "LANG": "C",
            "HOSTNAME": "h",
            "PWD": "/",
            "TERM": "xterm",
            "SHLVL": "1",
        },
        {"SSL_CERT_FILE": "/x", "PIP_INDEX_URL": "x", "UV_CACHE_DIR": "x", "KUBERNETES_SERVICE_HOST": "x"},
        {"WORLD_SIZE": "8", "RANK": "0", "LOCAL_RANK": "0", "NUM_NODES": "2", "NODE_ADDR": "x"},
        {
            "OLDPWD": "/",
            "DEBIAN_FRONTEND": "noninteractive",
            "LD_LIBRARY_PATH": "/x",
            "LS_COLORS": "x",
            "_": "x",
        },
    ],
)
def test_variables_of_other_software_get_no_warning(environ: dict[str, str]) -> None:
    assert configure(environ).warnings == ()
