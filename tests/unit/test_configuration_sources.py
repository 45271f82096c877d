"""Where values come from, and which of them wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.configurations import CPU, GPU, configure, problems, value, warnings_about
from worker_vllm.configuration import Machine

TWO_GPUS = Machine("gpu", gpus=2)


def write_file(root: Path, text: str) -> Path:
    (root / "vllm_config.yaml").write_text(text)
    return root


def write_manifest(root: Path, **content: Any) -> Path:
    (root / "local_model_args.json").write_text(json.dumps(content))
    return root


def baked(root: Path, **more: Any) -> Path:
    """An image's root with a model baked into it, in the layout of images in use."""
    snapshot = root / "models" / "models--Org--Model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    return write_manifest(root, MODEL_NAME=str(snapshot), MODEL_REVISION="abc", **more)


def test_each_source_wins_over_the_weaker_ones(tmp_path: Path) -> None:
    """vLLM's default < profile < file < environment < VLLM_EXTRA_ARGS."""
    assert configure().engine["enforce_eager"].source == "default"
    assert configure(machine=CPU).engine["enforce_eager"].source == "profile"
    root = write_file(tmp_path, "enforce-eager: false\n")
    assert configure(machine=CPU, root=root).engine["enforce_eager"].source == "file"
    resolved = configure(machine=CPU, root=root, ENFORCE_EAGER="false")
    assert resolved.engine["enforce_eager"].source == "environment"
    resolved = configure(machine=CPU, root=root, ENFORCE_EAGER="false", VLLM_EXTRA_ARGS="--enforce-eager")
    effective = resolved.engine["enforce_eager"]
    assert (effective.value, effective.source) == (True, "extra_args")
    assert effective.variable == "VLLM_EXTRA_ARGS --enforce-eager"


def test_the_file_takes_hyphens_underscores_and_typed_values(tmp_path: Path) -> None:
    text = """
        max-model-len: 8k
        max_num_seqs: 16
        enable-prefix-caching: false
        served-model-name: [a, b]
        speculative_config: {method: ngram, num_speculative_tokens: 2, prompt_lookup_max: 3}
        quantization: null
        dtype: ""
    """
    resolved = configure(root=write_file(tmp_path, text))
    assert {name: effective.value for name, effective in resolved.chosen().items()} == {
        "model": "org/model",
        "max_model_len": 8000,
        "max_num_seqs": 16,
        "enable_prefix_caching": False,
        "served_model_name": ["a", "b"],
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3},
    }
    assert resolved.warnings == ()


def test_the_file_means_values_that_forms_sent_for_everybody(tmp_path: Path) -> None:
    assert value("block_size", root=write_file(tmp_path, "block-size: 16")) == 16


def test_the_file_may_name_the_model(tmp_path: Path) -> None:
    assert value("model", {"MODEL_NAME": ""}, root=write_file(tmp_path, "model: org/other")) == "org/other"


def test_the_file_is_filled_in_from_the_environment(tmp_path: Path) -> None:
    text = "download-dir: ${BASE}/hub\nseed: ${SEED_OF_TESTS:-7}\nchat-template: '$${x} $BASE {{ messages }}'"
    resolved = configure(root=write_file(tmp_path, text), BASE="/volume")
    assert resolved.engine["download_dir"].value == "/volume/hub"
    assert resolved.engine["seed"].value == 7
    assert resolved.frontend["chat_template"].value == "${x} $BASE {{ messages }}"


def test_a_reference_to_nothing_is_a_problem(tmp_path: Path) -> None:
    (problem,) = problems(root=write_file(tmp_path, "download-dir: ${NOT_THERE}/hub"))
    assert problem.startswith("vllm_config.yaml: download-dir: ${NOT_THERE} is not set")


def test_another_file_can_be_named(tmp_path: Path) -> None:
    other = tmp_path / "other.yml"
    other.write_text("seed: 3")
    assert value("seed", VLLM_CONFIG_FILE=str(other)) == 3


def test_a_file_that_is_named_and_not_there_is_a_problem(tmp_path: Path) -> None:
    (problem,) = problems(VLLM_CONFIG_FILE=str(tmp_path / "no.yaml"))
    assert problem.startswith("VLLM_CONFIG_FILE=")
    assert problem.endswith("cannot be read: no such file or directory")


@pytest.mark.parametrize(
    "text", ["- a\n- b", "plain words", "a: [", "a: b: c", "\ta: 1", "!!python/object:os.x {}"]
)
def test_a_file_that_is_no_mapping_is_a_problem(tmp_path: Path, text: str) -> None:
    (problem,) = problems(root=write_file(tmp_path, text))
    assert problem.startswith("vllm_config.yaml: ")


def test_an_empty_file_is_fine(tmp_path: Path) -> None:
    assert configure(root=write_file(tmp_path, "# nothing\n")).warnings == ()


def test_an_unknown_key_of_the_file_warns_with_the_nearest_name(tmp_path: Path) -> None:
    """One of the sample files that circulate has such a key; vLLM's own --config dies of it."""
    (warning,) = configure(root=write_file(tmp_path, "max-modl-len: 5\n")).warnings
    assert warning == (
        "vllm_config.yaml: max-modl-len is no argument of vLLM 0.32.0; did you mean max_model_len?"
    )


@pytest.mark.parametrize(
    ("words", "name", "expected"),
    [
        ("--max-num-seqs 3", "max_num_seqs", 3),
        ("--max_num_seqs=3", "max_num_seqs", 3),
        ("-tp 2", "tensor_parallel_size", 2),
        ("--no-enable-prefix-caching", "enable_prefix_caching", False),
        ("--enable-prefix-caching", "enable_prefix_caching", True),
        ("--max-model-len -1", "max_model_len", -1),
        ("--served-model-name a b", "served_model_name", ["a", "b"]),
        ("--lora-modules a=x b=y", "lora_modules", [{"name": "a", "path": "x"}, {"name": "b", "path": "y"}]),
        ("""--lora-modules '{"name": "a", "path": "x"}'""", "lora_modules", [{"name": "a", "path": "x"}]),
        ("""--hf-overrides '{"a": 1}'""", "hf_overrides", {"a": 1}),
        ("--compilation-config.mode 3", "compilation_config", {"mode": 3}),
        (
            "--compilation-config.mode=3 --compilation-config.pass_config.x true",
            "compilation_config",
            {"mode": 3, "pass_config": {"x": True}},
        ),
        ("--compilation-config.custom_ops+ all,none", "compilation_config", {"custom_ops": ["all", "none"]}),
        ("-O1", "optimization_level", "1"),
        ("--seed 1 --seed 2", "seed", 2),
        ("--disable-log-stats", "disable_log_stats", True),
        ("--chat-template 'a b'", "chat_template", "a b"),
        ("--block-size 16", "block_size", 16),
    ],
)
def test_extra_arguments_as_on_vllms_command_line(words: str, name: str, expected: Any) -> None:
    assert value(name, VLLM_EXTRA_ARGS=words) == expected


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            "--max-num-seqs '3",
            "VLLM_EXTRA_ARGS: no closing quotation: a quote is open or a backslash ends the text",
        ),
        (
            "--max-num-seq 3",
            "VLLM_EXTRA_ARGS: --max-num-seq is no flag of vLLM 0.32.0; did you mean --max-num-seqs?",
        ),
        ("--max-num-seqs", "VLLM_EXTRA_ARGS: --max-num-seqs needs a value"),
        ("--max-num-seqs x", "VLLM_EXTRA_ARGS --max-num-seqs='x': expected a whole number"),
        ("org/model --seed 1", "VLLM_EXTRA_ARGS: 'org/model' follows no flag; name the model in MODEL_NAME"),
        (
            "--enforce-eager false",
            "VLLM_EXTRA_ARGS: --enforce-eager takes no value; the opposite is --no-enforce-eager",
        ),
    ],
)
def test_extra_arguments_that_cannot_be_read(words: str, problem: str) -> None:
    assert problems(VLLM_EXTRA_ARGS=words) == (problem,)


def test_one_key_of_an_object_is_a_variable() -> None:
    resolved = configure(
        COMPILATION_CONFIG='{"mode": 3, "cache_dir": "/c"}',
        COMPILATION_CONFIG__mode="0",
        COMPILATION_CONFIG__PASS_CONFIG__fuse="true",
        HF_OVERRIDES__rope_theta="1000000.0",
    )
    assert resolved.engine["compilation_config"].value == {
        "mode": 0,
        "cache_dir": "/c",
        "pass_config": {"fuse": True},
    }
    assert resolved.engine["hf_overrides"].value == {"rope_theta": 1_000_000.0}


def test_a_baked_model_stands_in_where_none_is_named(tmp_path: Path) -> None:
    root = baked(tmp_path, TOKENIZER_NAME="/baked/tokenizer", QUANTIZATION="awq")
    resolved = configure({"MODEL_NAME": ""}, root=root)
    sources = {name: effective.source for name, effective in resolved.chosen().items()}
    assert sources | {"served_model_name": "profile"} == {
        "model": "baked",
        "revision": "baked",
        "tokenizer": "baked",
        "quantization": "baked",
        "served_model_name": "profile",
    }
    assert resolved.environment == {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def test_a_baked_model_is_served_by_its_repository_and_its_path(tmp_path: Path) -> None:
    resolved = configure({"MODEL_NAME": ""}, root=baked(tmp_path))
    path = resolved.engine["model"].value
    assert resolved.served_model_names[:2] == ("Org/Model", path)


@pytest.mark.parametrize("name", ["Org/Model", "org/model"])
def test_the_baked_model_is_used_when_the_environment_names_the_same(tmp_path: Path, name: str) -> None:
    resolved = configure({"MODEL_NAME": name, "MODEL_REVISION": "main"}, root=baked(tmp_path))
    assert resolved.engine["model"].source == "baked"
    assert resolved.engine["revision"].value == "abc"
    assert resolved.warnings == ()


def test_another_model_name_wins_over_the_baked_model_with_a_warning(tmp_path: Path) -> None:
    resolved = configure({"MODEL_NAME": "other/model"}, root=baked(tmp_path))
    assert resolved.engine["model"].value == "other/model"
    assert resolved.environment == {}
    assert warnings_about(
        "MODEL_NAME='other/model' is used, not the model in the image (Org/Model)", resolved
    )


def test_baked_weights_behind_a_volume_are_a_problem(tmp_path: Path) -> None:
    root = write_manifest(tmp_path, MODEL_NAME="/runpod-volume/models--a--b/snapshots/c")
    (problem, *_) = problems({"MODEL_NAME": ""}, root=root)
    assert "is a volume mounted over it?" in problem


def test_baked_weights_behind_a_volume_are_downloaded_when_the_model_is_named(tmp_path: Path) -> None:
    root = write_manifest(tmp_path, MODEL_NAME="/runpod-volume/models--a--b/snapshots/c")
    resolved = configure({"MODEL_NAME": "a/b"}, root=root)
    assert resolved.engine["model"].value == "a/b"
    assert warnings_about("is a volume mounted over it?", resolved)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"MODEL_NAME": 3}', "{"])
def test_a_broken_manifest_is_a_problem(tmp_path: Path, text: str) -> None:
    (tmp_path / "local_model_args.json").write_text(text)
    (problem,) = problems(root=tmp_path)
    assert "bake the image again" in problem


def test_served_names_default_to_the_model_as_given(tmp_path: Path) -> None:
    assert configure().served_model_names == ("org/model",)
    folder = tmp_path / "my-model"
    folder.mkdir()
    assert configure(MODEL_NAME=str(folder)).served_model_names == (str(folder), "my-model")


def test_a_list_of_served_names_is_split_once_and_everywhere_the_same() -> None:
    resolved = configure(OPENAI_SERVED_MODEL_NAME_OVERRIDE="a, b,a", SERVED_MODEL_NAME="c")
    assert resolved.served_model_names == ("a", "b")
    assert resolved.engine["served_model_name"].value == ["a", "b"]


def test_a_cpu_gets_eager_mode_and_a_bounded_cache() -> None:
    resolved = configure(machine=Machine("cpu", free_memory=9 * 1024**3))
    assert resolved.engine["enforce_eager"].value is True
    assert resolved.engine["kv_cache_memory_bytes"].value == 2 * 1024**3
    assert value("kv_cache_memory_bytes", machine=Machine("cpu", free_memory=1 << 40)) == 4 * 1024**3
    assert value("kv_cache_memory_bytes", machine=Machine("cpu", free_memory=0)) == 1024**3


def test_the_summary_says_what_was_chosen_and_by_what() -> None:
    summary = configure(machine=CPU, MAX_NUM_SEQS="3", HF_TOKEN="hf_swordfish").summary()
    assert "model=org/model (MODEL_NAME)" in summary
    assert "enforce_eager=True (profile)" in summary
    assert "max_num_seqs=3 (MAX_NUM_SEQS)" in summary
    assert "hf_token=*** (HF_TOKEN)" in summary


def test_each_default_of_the_cpu_can_be_overridden() -> None:
    assert value("enforce_eager", machine=CPU, ENFORCE_EAGER="false") is False
    assert value("kv_cache_memory_bytes", machine=CPU, KV_CACHE_MEMORY_BYTES="1G") == 1 << 30
    own = configure(machine=CPU, VLLM_CPU_KVCACHE_SPACE="3").engine["kv_cache_memory_bytes"]
    assert (own.value, own.source) == (None, "default")


@pytest.mark.parametrize(
    ("gpus", "heads", "size"),
    [(2, 32, 2), (4, 32, 4), (3, 32, 2), (8, 14, 7), (2, 9, 1), (4, None, 4), (7, None, 4)],
)
def test_tensor_parallel_is_as_many_gpus_as_divide_the_heads(gpus: int, heads: int | None, size: int) -> None:
    resolved = configure(machine=Machine("gpu", gpus=gpus), heads=heads)
    effective = resolved.engine["tensor_parallel_size"]
    assert (effective.value, effective.source) == (size, "profile")
    assert bool(resolved.warnings) is (size < gpus or heads is None)


def test_one_gpu_needs_no_choice() -> None:
    assert configure(machine=GPU).engine["tensor_parallel_size"].source == "default"


def test_the_forms_literal_one_leaves_tensor_parallel_automatic() -> None:
    assert value("tensor_parallel_size", machine=TWO_GPUS, TENSOR_PARALLEL_SIZE="1") == 2
    assert value("tensor_parallel_size", machine=TWO_GPUS, PIPELINE_PARALLEL_SIZE="1") == 2


@pytest.mark.parametrize(
    "environ",
    [
        {"VLLM_ARG_TENSOR_PARALLEL_SIZE": "1"},
        {"VLLM_EXTRA_ARGS": "-tp 1"},
        {"PIPELINE_PARALLEL_SIZE": "2"},
        {"DATA_PARALLEL_SIZE": "2"},
    ],
)
def test_tensor_parallel_is_left_alone_once_the_gpus_are_spoken_for(environ: dict[str, str]) -> None:
    assert value("tensor_parallel_size", environ, machine=TWO_GPUS) == 1


def test_a_real_choice_of_tensor_parallel_is_kept() -> None:
    effective = configure(machine=Machine("gpu", gpus=4), TENSOR_PARALLEL_SIZE="2").engine[
        "tensor_parallel_size"
    ]
    assert (effective.value, effective.source) == (2, "environment")
