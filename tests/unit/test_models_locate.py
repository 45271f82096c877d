"""Where names lead on this machine: no hub is asked in any of these."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import repositories
from tests.configurations import configure
from worker_vllm import models
from worker_vllm.configuration import Configuration
from worker_vllm.errors import ConfigurationError, EngineStartError
from worker_vllm.models import ModelFacts, cache
from worker_vllm.models.download import Download, progress, writable
from worker_vllm.models.hub import Hub, Listing
from worker_vllm.models.locate import Locator
from worker_vllm.models.wanted import Part

NAME = "Org/Model"
COMMIT = "d" * 40


def no_hub(*_: Any) -> Hub:
    raise AssertionError("the hub was asked")


class Machine:
    """A machine: its root, its caches, and what a name leads to there."""

    def __init__(self, home: Path) -> None:
        self.root = home / "root"
        self.runpod = self.root / cache.RUNPOD_CACHE
        self.own = home / "own"
        self.environ = {"HF_HUB_CACHE": str(self.own), "HOME": str(home)}

    def find(self, name: str = NAME, revision: str | None = None, **options: Any) -> ModelFacts:
        locator = Locator(self.environ, root=self.root, make_hub=no_hub, **options)
        return locator.find(Part("model", name, revision)).facts

    def finds_nothing(self, name: str = NAME, revision: str | None = None, **options: Any) -> bool:
        """Whether the name leads to the hub."""
        try:
            self.find(name, revision, **options)
        except AssertionError:
            return True
        return False

    def refuses(self, name: str, **options: Any) -> str:
        with pytest.raises(ConfigurationError) as caught:
            self.find(name, **options)
        (problem,) = caught.value.problems
        return problem

    def placed(self, **variables: str) -> Configuration:
        self.environ |= variables
        configuration = configure(self.environ, root=self.root)
        resolution = models.resolve(configuration, self.environ, self.root)
        assert resolution.downloads == ()
        return resolution.placed(configuration, self.environ)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# ---- paths


def test_a_path_that_does_not_exist_is_refused_in_our_words(machine: Machine) -> None:
    assert machine.refuses("/nonexistent") == (
        "MODEL_NAME='/nonexistent': there is no such path on this machine"
    )


def test_a_volume_that_is_not_mounted_is_named(machine: Machine) -> None:
    assert machine.refuses("/no-such-volume/models/x").endswith("; nothing is mounted at /no-such-volume")


def test_a_mistyped_folder_is_told_its_neighbour(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "qwen3-8b").mkdir()
    assert machine.refuses(f"{tmp_path}/qwen3-8B1").endswith(f"; did you mean {tmp_path}/qwen3-8b?")


def test_a_mistyped_relative_folder_is_told_its_neighbour_before_the_hub_is_asked(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be a repository's name as well, and then the hub's answer alone would send its reader astray."""
    (tmp_path / "models" / "tiny-random").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert machine.finds_nothing("models/tiny-randon")
    assert "did you mean models/tiny-random?" in caplog.text
    caplog.clear()
    assert machine.finds_nothing("org/tiny-randon")
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["a/b/c", "./here", "~/nowhere"])
def test_what_can_only_be_a_path_is_no_repository(machine: Machine, name: str) -> None:
    assert "there is no such path on this machine" in machine.refuses(name)


@pytest.mark.parametrize("name", ["not a name", "x\0y", "org/--x", "Ünï/cödé"])
def test_what_is_neither_path_nor_repository_is_refused(machine: Machine, name: str) -> None:
    assert "neither a path on this machine nor a repository's name" in machine.refuses(name)


def test_a_folder_without_a_model_is_refused(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert machine.refuses(f"{tmp_path}/empty").endswith("the folder has no config.json")


def test_a_caches_folder_is_not_a_models(machine: Machine) -> None:
    snapshot = repositories.cached(machine.own, NAME, repositories.sharded())
    assert "give the repository's name" in machine.refuses(str(snapshot.parents[1]))


def test_a_folder_that_lacks_weights_is_refused_with_their_number(machine: Machine, tmp_path: Path) -> None:
    files = repositories.sharded()
    del files[repositories.SHARDS[1]]
    problem = machine.refuses(str(repositories.write(tmp_path / "m", files)))
    assert "1 of 2 weight files are missing, model-00002-of-00002.safetensors among them" in problem


@pytest.mark.parametrize("name", [repositories.SHARDS[1], "tokenizer.json"])
def test_a_pointer_of_git_lfs_is_no_file(machine: Machine, tmp_path: Path, name: str) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 20000\n"
    folder = repositories.write(tmp_path / "m", repositories.sharded() | {name: pointer})
    assert f"{name} is Git LFS's pointer to a file, not the file" in machine.refuses(str(folder))


def test_weights_may_be_missing_where_none_are_read(machine: Machine, tmp_path: Path) -> None:
    folder = repositories.write(tmp_path / "m", {"config.json": repositories.CONFIG})
    assert machine.find(str(folder), load_format="dummy").source == "path"


def test_a_gguf_file_is_a_model_and_another_file_is_none(machine: Machine, tmp_path: Path) -> None:
    repositories.write(tmp_path, {"m.gguf": b"x" * 7, "m.txt": "x"})
    assert machine.find(f"{tmp_path}/m.gguf").weight_bytes == 7
    assert "no GGUF" in machine.refuses(f"{tmp_path}/m.txt")


@pytest.mark.parametrize("name", ["s3://bucket/model", "gs://b/m", "az://b/m", "https://host/m"])
def test_an_address_is_left_to_vllm(machine: Machine, name: str) -> None:
    facts = machine.find(name)
    assert (facts.source, facts.config) == ("remote", {})


def test_a_repository_of_modelscope_is_left_to_vllm(machine: Machine) -> None:
    machine.environ["VLLM_USE_MODELSCOPE"] = "true"
    assert machine.find().source == "remote"


def test_a_local_model_needs_no_hub_library(tmp_path: Path) -> None:
    """Its import costs half a second."""
    folder = repositories.write(tmp_path, repositories.sharded())
    code = (
        "import sys; from worker_vllm import models; "
        f"assert models.look({str(folder)!r}, environ={{}}).weights.complete; "
        "print(*({'huggingface_hub', 'vllm', 'jinja2'} & set(sys.modules)))"
    )
    source = Path(models.__file__).parents[2]
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == ""


# ---- caches


def test_runpods_model_cache_is_found_in_lower_case_and_served_under_the_given_name(machine: Machine) -> None:
    snapshot = repositories.cached(machine.runpod, NAME, repositories.sharded(), COMMIT, lower=True)
    placed = machine.placed(MODEL_NAME=NAME)
    assert placed.engine["model"].value == str(snapshot)
    assert placed.served_model_names == (NAME,)
    assert placed.environment == {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def test_runpods_cache_comes_before_the_librarys_own(machine: Machine) -> None:
    repositories.cached(machine.own, NAME, repositories.sharded())
    wanted = repositories.cached(machine.runpod, NAME, repositories.sharded(), COMMIT)
    assert machine.find().directory == wanted


def test_an_incomplete_cache_is_passed_over_for_a_whole_one(machine: Machine) -> None:
    partial = repositories.sharded()
    del partial[repositories.SHARDS[0]]
    repositories.cached(machine.runpod, NAME, partial)
    wanted = repositories.cached(machine.own, NAME, repositories.sharded(), COMMIT)
    assert machine.find().directory == wanted


def test_the_exact_case_comes_before_another(machine: Machine) -> None:
    repositories.cached(machine.own, NAME, repositories.sharded(), lower=True)
    wanted = repositories.cached(machine.own, NAME, repositories.sharded(), COMMIT)
    assert machine.find().directory == wanted


def test_the_branch_decides_between_snapshots_not_their_order(machine: Machine) -> None:
    wanted = repositories.cached(machine.own, NAME, repositories.sharded(), "1" * 40)
    repositories.cached(machine.own, NAME, repositories.sharded(), "f" * 40, ref="other")
    assert machine.find().directory == wanted
    assert machine.find(revision="main").directory == wanted


def test_without_branches_the_latest_snapshot_counts(machine: Machine) -> None:
    older = repositories.cached(machine.own, NAME, repositories.sharded(), "f" * 40, ref=None)
    wanted = repositories.cached(machine.own, NAME, repositories.sharded(), "1" * 40, ref=None)
    os.utime(older, (1, 1))
    facts = machine.find()
    assert (facts.directory, facts.commit) == (wanted, "1" * 40)


@pytest.mark.parametrize("revision", ["v1", COMMIT, COMMIT[:8]])
def test_a_revision_is_found_by_branch_commit_or_its_beginning(machine: Machine, revision: str) -> None:
    repositories.cached(machine.own, NAME, repositories.sharded(), "1" * 40)
    wanted = repositories.cached(machine.own, NAME, repositories.sharded(), COMMIT, ref="v1")
    assert machine.find(revision=revision).directory == wanted


@pytest.mark.parametrize("revision", ["v2", "e" * 40, "../../x", "1"])
def test_another_revision_is_not_taken_for_the_one_asked_for(machine: Machine, revision: str) -> None:
    repositories.cached(machine.own, NAME, repositories.sharded(), "1" * 40)
    assert machine.finds_nothing(revision=revision)


@pytest.mark.parametrize(
    "missing", ["config.json", "tokenizer.json", repositories.SHARDS[0], repositories.SHARDS[1]]
)
def test_a_snapshot_that_lacks_something_is_not_whole(machine: Machine, missing: str) -> None:
    files = repositories.sharded()
    del files[missing]
    repositories.cached(machine.own, NAME, files)
    assert machine.finds_nothing()


def test_a_tokenizer_from_elsewhere_need_not_be_in_the_snapshot(machine: Machine) -> None:
    files = repositories.sharded()
    del files["tokenizer.json"]
    repositories.cached(machine.own, NAME, files)
    assert machine.find(needs_tokenizer=False).source == "cache"


def listed(files: Mapping[str, Any], **sizes: int) -> dict[str, Any]:
    entries = {
        name: {"size": len(data if isinstance(data, bytes) else json.dumps(data)), "blob_id": "x"}
        for name, data in files.items()
    }
    return {"format_version": 1, "files": entries | {name: {"size": size} for name, size in sizes.items()}}


def test_the_hubs_own_list_says_whether_a_snapshot_is_whole(machine: Machine) -> None:
    files = {"config.json": repositories.CONFIG, "tokenizer.json": {}, "model.safetensors": b"w" * 50}
    snapshot = repositories.cached(machine.own, NAME, files, COMMIT)
    tree = snapshot.parents[1] / "trees" / f"{COMMIT}.json"
    tree.parent.mkdir()
    tree.write_text(json.dumps(listed(files)))
    assert machine.find().directory == snapshot
    (snapshot / "model.safetensors").write_bytes(b"w" * 49)
    assert machine.finds_nothing()
    (snapshot / "model.safetensors").write_bytes(b"w" * 50)
    tree.write_text(json.dumps(listed({**files, "chat_template.jinja": b"x"})))
    assert machine.finds_nothing()


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/a"}, "/a"),
        ({"HF_HOME": "/b", "HF_HUB_CACHE": ""}, "/b/hub"),
        ({"HOME": "/h"}, "/h/.cache/huggingface/hub"),
        ({"HOME": "/h", "HF_HOME": "~/x"}, "/h/x/hub"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
    ],
)
def test_the_cache_is_where_the_hub_library_has_it(environ: dict[str, str], place: str) -> None:
    assert cache.default(environ) == Path(place)


def test_base_path_and_download_dir_are_looked_into(machine: Machine, tmp_path: Path) -> None:
    volume, folder = tmp_path / "volume", tmp_path / "downloads"
    wanted = repositories.cached(volume / "huggingface-cache" / "hub", NAME, repositories.sharded())
    machine.environ["BASE_PATH"] = str(volume)
    assert machine.find().directory == wanted
    wanted = repositories.cached(folder, "org/other", repositories.sharded())
    assert machine.find("org/other", download_dir=str(folder)).directory == wanted
    environ = machine.environ | {"DOWNLOAD_DIR": str(folder), "HF_ENDPOINT": "http://127.0.0.1:9"}
    assert models.look("org/other", environ=environ, root=machine.root).directory == wanted


def test_what_is_downloaded_goes_where_it_will_be_looked_for(machine: Machine) -> None:
    locator = Locator(machine.environ, root=machine.root, download_dir="~/models")
    assert locator.hub.cache == Path(machine.environ["HOME"]) / "models"


def test_two_workers_with_one_number_may_note_a_revision_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one volume, from containers whose processes are numbered alike."""
    download = Download(Hub({}, tmp_path), Listing("org/model", "main", COMMIT, {}), ())
    replace = Path.replace

    def replace_after_the_other(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        download._note_revision()
        return path.replace(target)

    monkeypatch.setattr(Path, "replace", replace_after_the_other)
    download._note_revision()
    (ref,) = (download.root / "refs").iterdir()
    assert (ref.name, ref.read_text()) == ("main", COMMIT)


def test_a_config_is_read_from_a_cache_without_the_hub(machine: Machine) -> None:
    repositories.cached(machine.own, NAME, repositories.sharded(), COMMIT)
    read = models.config_reader(machine.environ | {"HF_ENDPOINT": "http://127.0.0.1:9"}, machine.root)
    assert read(NAME, None) == repositories.CONFIG
    assert read("/nonexistent", None) is None


# ---- what the configuration becomes


def test_tokenizer_adapters_and_drafter_are_found_in_caches_too(machine: Machine) -> None:
    repositories.cached(machine.own, NAME, repositories.sharded())
    tokenizer = repositories.cached(machine.own, "org/tok", repositories.TOKENIZER)
    adapter = repositories.cached(machine.runpod, "Org/Lora", repositories.adapter(), lower=True)
    drafter = repositories.cached(machine.own, "org/draft", repositories.sharded())
    placed = machine.placed(
        MODEL_NAME=NAME,
        TOKENIZER="org/tok",
        LORA_MODULES='[{"name": "sql", "path": "Org/Lora", "base_model_name": "b"}]',
        SPECULATIVE_MODEL="org/draft",
        NUM_SPECULATIVE_TOKENS="2",
    )
    assert placed.engine["tokenizer"].value == str(tokenizer)
    assert placed.frontend["lora_modules"].value == [
        {"name": "sql", "path": str(adapter), "base_model_name": "b"}
    ]
    assert placed.engine["speculative_config"].value["model"] == str(drafter)
    assert placed.environment["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("name", ["VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_LORA_RESOLVER_HF_REPO_LIST"])
def test_adapters_that_come_later_keep_the_hub_open(machine: Machine, name: str) -> None:
    repositories.cached(machine.own, NAME, repositories.sharded())
    assert machine.placed(**{"MODEL_NAME": NAME, name: "1"}).environment == {}


@pytest.mark.parametrize(
    "config",
    [
        {"auto_map": {"AutoConfig": "other/repo--configuration.C"}},
        {"text_model_id": "other/repo"},
        {"speculators_config": {"verifier": {"name_or_path": "other/repo"}}},
    ],
)
def test_another_repository_in_the_configuration_keeps_the_hub_open(
    machine: Machine, config: dict[str, Any]
) -> None:
    repositories.cached(machine.own, NAME, repositories.sharded(**config))
    facts = machine.find()
    assert facts.elsewhere + facts.code_elsewhere == ("other/repo",)
    assert machine.placed(MODEL_NAME=NAME).environment == {}


def test_what_the_operator_said_of_offline_stays(machine: Machine) -> None:
    repositories.cached(machine.own, NAME, repositories.sharded())
    placed = machine.placed(MODEL_NAME=NAME, HF_HUB_OFFLINE="0")
    assert "HF_HUB_OFFLINE" not in placed.environment


def test_a_folder_is_served_as_it_was_named(machine: Machine, tmp_path: Path) -> None:
    folder = repositories.write(tmp_path / "mine", repositories.sharded())
    placed = machine.placed(MODEL_NAME=str(folder))
    assert placed.engine["model"].value == str(folder)
    assert placed.served_model_names == (str(folder), "mine")
    assert placed.environment == {}


def test_an_address_changes_nothing(machine: Machine) -> None:
    placed = machine.placed(MODEL_NAME="s3://bucket/model")
    assert placed.engine["model"].value == "s3://bucket/model"
    assert placed.environment == {}


def test_an_adapter_without_its_configuration_is_named(machine: Machine, tmp_path: Path) -> None:
    folder = repositories.write(tmp_path / "lora", {"x.json": {}})
    repositories.cached(machine.own, NAME, repositories.sharded())
    with pytest.raises(ConfigurationError, match=r"LORA_MODULES='.*': the folder has no adapter_config"):
        machine.placed(MODEL_NAME=NAME, LORA_MODULES=f"sql={folder}")


def test_a_baked_tokenizer_adapter_or_drafter_is_found_by_its_name(machine: Machine) -> None:
    model = repositories.write(machine.root / "models" / "m", repositories.sharded())
    lora = repositories.write(machine.root / "models" / "l", repositories.adapter(rank=32))
    manifest = {
        "MODEL_NAME": str(model),
        "MODEL_REPO": NAME,
        "BAKED": [{"role": "adapter", "repository": "org/lora", "path": str(lora)}],
    }
    (machine.root / "local_model_args.json").write_text(json.dumps(manifest))
    placed = machine.placed(MODEL_NAME=NAME, LORA_MODULES="sql=Org/LoRA")
    assert placed.engine["model"].value == str(model)
    assert placed.frontend["lora_modules"].value == [{"name": "sql", "path": str(lora)}]
    assert placed.served_model_names[0] == NAME


def test_facts_of_an_adapter_that_is_nowhere_say_so(machine: Machine, tmp_path: Path) -> None:
    folder = repositories.write(tmp_path / "m", repositories.sharded())
    facts = models.look(str(folder), environ=machine.environ, root=machine.root, adapters={"a": "/nowhere/a"})
    (adapter,) = facts.adapters
    assert adapter.problem is not None and "there is no such path" in adapter.problem


@pytest.mark.parametrize(
    ("features", "named"),
    [
        ({"use_dora": True, "bias": "all"}, "use_dora and a bias"),
        ({"modules_to_save": ["embed_tokens", "score"]}, "whole modules (embed_tokens, in modules_to_save)"),
        ({"modules_to_save": ["score"], "use_dora": False, "bias": "none"}, None),
    ],
)
def test_an_adapter_with_what_vllm_refuses_is_named(
    machine: Machine, tmp_path: Path, features: dict[str, Any], named: str | None
) -> None:
    files = repositories.adapter()
    config = files["adapter_config.json"] | features
    path = repositories.write(tmp_path / "a", files | {"adapter_config.json": config})
    folder = repositories.write(tmp_path / "m", repositories.sharded())
    facts = models.look(str(folder), environ=machine.environ, root=machine.root, adapters={"a": str(path)})
    (adapter,) = facts.adapters
    assert adapter.problem == (
        f"it has {named}, which vLLM refuses: merge it into the model" if named else None
    )


# ---- downloads, as far as they need no hub


@pytest.mark.parametrize(
    ("here", "came", "seconds", "words"),
    [
        (2_000_000_000, 1_000_000_000, 10.0, "2.0 GB of 12.0 GB, 100.0 MB/s, 2 min left"),
        (11_000_000_000, 1_000_000_000, 10.0, "11.0 GB of 12.0 GB, 100.0 MB/s, 10 s left"),
        (100_000_000, 100_000_000, 100.0, "0.1 GB of 12.0 GB, 1.0 MB/s, 3.3 h left"),
        (100_000_000, 0, 20.0, "0.1 GB of 12.0 GB, nothing has come for 20 s"),
    ],
)
def test_progress_is_told_with_rate_and_time_left(here: int, came: int, seconds: float, words: str) -> None:
    assert progress(here, 12_000_000_000, came, seconds) == words


def test_a_cache_for_reading_alone_is_not_downloaded_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: "writable" in str(path))
    (tmp_path / "writable").mkdir()
    assert writable((tmp_path / "x", tmp_path / "writable" / "hub")) == tmp_path / "writable" / "hub"
    with pytest.raises(EngineStartError, match="no place to download to"):
        writable((Path("/x"),))
