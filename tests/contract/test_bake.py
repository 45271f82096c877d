"""`worker-vllm bake` against the fake hub, and the worker that finds what was baked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import repositories
from tests.configurations import configure
from tests.fake_hub import FakeHub
from worker_vllm import cli, models
from worker_vllm.cli import bake as verb
from worker_vllm.configuration import Configuration
from worker_vllm.errors import ConfigurationError, EngineStartError
from worker_vllm.models import bake
from worker_vllm.models import hub as hub_module

NAME = "org/model"


class Image:
    """An image while it is built, and the worker that starts from it."""

    def __init__(self, hub: FakeHub, root: Path) -> None:
        self.root = root
        self.models = root / "models"
        self.environ = {"HF_ENDPOINT": hub.url, "HOME": str(root)}

    def bake(self, *arguments: str, **variables: str) -> int:
        words = ["bake", *arguments, "--to", str(self.models), "--root", str(self.root)]
        return cli.main(words, {**self.environ, **variables})

    def manifest(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.root / "local_model_args.json").read_text())
        return found

    def worker(self, **variables: str) -> Configuration:
        """The configuration of a worker that can reach no hub."""
        environ = {"MODEL_NAME": "", "HF_ENDPOINT": "http://127.0.0.1:9", "HOME": str(self.root), **variables}
        configuration = configure(environ, root=self.root)
        resolution = models.resolve(configuration, environ, self.root)
        assert resolution.downloads == ()
        return resolution.placed(configuration, environ)


@pytest.fixture
def image(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    # the folder of a test may be on a volume itself
    monkeypatch.setattr(os.path, "ismount", lambda _: False)
    monkeypatch.setattr(verb, "SECRET", tmp_path / "secret")
    return Image(hub, tmp_path)


def test_a_baked_model_is_pinned_verified_and_written_down(hub: FakeHub, image: Image) -> None:
    commit = hub.add(NAME, repositories.sharded())
    assert image.bake("--model", NAME) == 0
    folder = image.models / "models--org--model" / "snapshots" / commit
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert present == repositories.NEEDED
    written = image.manifest()
    assert written["MODEL_NAME"] == str(folder)
    assert written["MODEL_REPO"] == NAME
    assert written["MODEL_REVISION"] == commit
    (entry,) = written["BAKED"]  # type: ignore[misc]
    assert (entry["role"], entry["files"]) == ("model", len(repositories.NEEDED))
    assert not (image.models / ".locks").exists()


def test_the_worker_serves_what_was_baked_without_a_hub_and_without_a_name(
    hub: FakeHub, image: Image
) -> None:
    hub.add(NAME, repositories.sharded())
    hub.add("org/tokenizer", repositories.TOKENIZER)
    hub.add("org/lora", repositories.adapter())
    hub.add("org/draft", repositories.sharded(size=100))
    words = ["--model", NAME, "--tokenizer", "org/tokenizer", "--adapter", "sql=org/lora"]
    assert image.bake(*words, "--speculator", "org/draft") == 0
    placed = image.worker(SPECULATIVE_MODEL="org/draft", NUM_SPECULATIVE_TOKENS="2")
    assert placed.served_model_names[0] == NAME
    assert placed.engine["model"].source == "baked"
    assert Path(placed.engine["tokenizer"].value, "tokenizer.json").is_file()
    (adapter,) = placed.frontend["lora_modules"].value
    assert adapter["name"] == "sql"
    assert Path(adapter["path"], "adapter_config.json").is_file()
    drafter = Path(placed.engine["speculative_config"].value["model"])
    assert (drafter / repositories.SHARDS[0]).stat().st_size == 100
    assert placed.environment["HF_HUB_OFFLINE"] == "1"


def test_adapters_of_the_operator_win_over_baked_ones(hub: FakeHub, image: Image, tmp_path: Path) -> None:
    hub.add(NAME, repositories.sharded())
    hub.add("org/lora", repositories.adapter())
    image.bake("--model", NAME, "--adapter", "org/lora")
    mine = repositories.write(tmp_path / "mine", repositories.adapter())
    placed = image.worker(LORA_MODULES=f"mine={mine}")
    assert [adapter["name"] for adapter in placed.frontend["lora_modules"].value] == ["mine"]
    (adapter,) = image.worker().frontend["lora_modules"].value
    assert adapter["name"] == "lora"


def test_the_docker_builds_variables_stand_behind_the_options(hub: FakeHub, image: Image) -> None:
    old = hub.add(NAME, repositories.sharded(hidden_size=1))
    hub.add(NAME, repositories.sharded(hidden_size=2))
    variables = {"MODEL_NAME": NAME, "MODEL_REVISION": old, "QUANTIZATION": "awq", "TOKENIZER_NAME": ""}
    assert image.bake(**variables) == 0
    assert image.manifest()["MODEL_REVISION"] == old
    assert image.manifest()["QUANTIZATION"] == "awq"
    assert image.worker().engine["quantization"].value == "awq"


def test_code_that_is_named_and_not_needed_does_not_hinder(hub: FakeHub, image: Image) -> None:
    """A fine-tuned model names its base's code, though vLLM has the class itself."""
    hub.add(NAME, repositories.sharded(auto_map={"AutoConfig": "org/base--configuration.C"}))
    assert image.bake("--model", NAME) == 0


def test_revisions_of_parts_are_pinned_too(hub: FakeHub, image: Image) -> None:
    hub.add(NAME, repositories.sharded())
    old = hub.add("org/lora", repositories.adapter(rank=4))
    hub.add("org/lora", repositories.adapter(rank=8))
    assert image.bake("--model", NAME, "--adapter", f"org/lora@{old}") == 0
    (adapter,) = image.worker().frontend["lora_modules"].value
    assert json.loads(Path(adapter["path"], "adapter_config.json").read_text())["r"] == 4


def test_the_token_comes_from_a_secret_and_is_kept_nowhere(
    hub: FakeHub, image: Image, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.add(NAME, repositories.sharded(), gated=True)
    hub.tokens = {"hf_build_secret": {NAME}}
    verb.SECRET.write_text("hf_build_secret\n")
    assert image.bake("--model", NAME) == 0
    verb.SECRET.unlink()
    out = capfd.readouterr()
    assert "hf_build_secret" not in out.out + out.err
    for path in image.root.rglob("*"):
        assert path.is_dir() or b"hf_build_secret" not in path.read_bytes()


def test_a_gated_model_without_a_token_is_refused_with_the_remedy(
    hub: FakeHub, image: Image, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.add(NAME, repositories.sharded(), gated=True)
    assert image.bake("--model", NAME) == 2
    assert "org/model is gated: accept its terms" in capfd.readouterr().err
    assert not (image.root / "local_model_args.json").exists()


def test_a_damaged_file_is_found_by_its_hash_and_fetched_anew(
    hub: FakeHub, image: Image, capfd: pytest.CaptureFixture[str]
) -> None:
    commit = hub.add(NAME, repositories.sharded())
    assert image.bake("--model", NAME) == 0
    shard = image.models / "models--org--model" / "snapshots" / commit / repositories.SHARDS[0]
    shard.resolve().write_bytes(b"x" * 20_000)
    assert image.bake("--model", NAME) == 3
    assert f"{repositories.SHARDS[0]} differ from what the hub lists" in capfd.readouterr().err
    assert image.bake("--model", NAME) == 0
    assert shard.read_bytes() == b"a" * 20_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "org/nobody"], "has no org/nobody"),
        (["--model", "/folder"], "expected a repository's name"),
        ([], "--model is missing"),
        (["--model", NAME, "--adapter", NAME], "it has no adapter_config.json"),
        (["--model", "org/lora"], "it lacks what a model needs"),
        (["--model", "org/parts"], "its config.json names org/other, too"),
        (["--model", "org/code"], "its config.json names org/other, too"),
        (["--model", "org/odd"], "is a OddForCausalLM, which neither vLLM nor transformers has"),
    ],
)
def test_what_cannot_be_baked_is_refused(
    hub: FakeHub, image: Image, arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.add(NAME, repositories.sharded())
    hub.add("org/lora", repositories.adapter())
    hub.add("org/parts", repositories.sharded(text_model_id="org/other"))
    own = {"AutoConfig": "org/other--configuration.C", "AutoModel": "org/other--modeling.M"}
    hub.add("org/code", repositories.sharded(architectures=["Own"], model_type="own", auto_map=own))
    hub.add("org/odd", repositories.sharded(architectures=["OddForCausalLM"], model_type="odd"))
    assert image.bake(*arguments) == 2
    assert words in capfd.readouterr().err
    assert hub.asked("/store/") == []


# ---- where


def mounts(*folders: str) -> Callable[[Path], bool]:
    return lambda path: str(path) in ("/", *folders)


@pytest.mark.parametrize(
    ("target", "mounted", "volume", "words"),
    [
        (
            "/runpod-volume/huggingface-cache/hub",
            (),
            False,
            "RunPod mounts a network volume at /runpod-volume",
        ),
        ("/workspace/models", (), False, "RunPod mounts a network volume at /workspace"),
        ("/runpod-volume/x", ("/runpod-volume",), False, "hides what the image has there"),
        ("/data/models", ("/data",), False, "/data is a volume, so the files would not be in the image"),
        ("/data/models", (), True, "no volume is mounted there"),
    ],
)
def test_a_place_where_the_files_would_be_lost_is_refused(
    target: str, mounted: tuple[str, ...], volume: bool, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        bake.check_target(Path(target), volume=volume, is_mount=mounts(*mounted))


@pytest.mark.parametrize(
    ("target", "mounted", "volume"),
    [("/models", (), False), ("/workspace/hub", ("/workspace",), True), ("/runpod-volumes/x", (), False)],
)
def test_other_places_will_do(target: str, mounted: tuple[str, ...], volume: bool) -> None:
    bake.check_target(Path(target), volume=volume, is_mount=mounts(*mounted))


def test_a_volume_gets_the_files_and_no_manifest(
    hub: FakeHub, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: path == image.root)
    commit = hub.add(NAME, repositories.sharded())
    image.models = image.root / "runpod-volume" / "huggingface-cache" / "hub"
    assert image.bake("--model", NAME, "--volume") == 0
    assert not (image.root / "local_model_args.json").exists()
    assert image.worker(MODEL_NAME=NAME).engine["model"].value.endswith(commit)


def test_verification_names_what_differs(hub: FakeHub, image: Image) -> None:
    hub.add(NAME, repositories.sharded())
    image.bake("--model", NAME)
    client = hub_module.Hub(image.environ, image.models)
    listing = client.listing(NAME, None)
    item = bake.Download(client, listing, ("config.json",))
    bake.verify(item)
    (item.directory / "config.json").resolve().write_text("{}")
    with pytest.raises(EngineStartError, match=r"org/model: config\.json differ"):
        bake.verify(item)
