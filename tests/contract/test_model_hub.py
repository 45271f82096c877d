"""Models from a hub: the real hub library against a fake hub on loopback that speaks the hub's protocol."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests import repositories
from tests.configurations import configure
from tests.fake_hub import FakeHub
from worker_vllm import models
from worker_vllm.configuration import Configuration
from worker_vllm.errors import ConfigurationError, EngineStartError, StartupFailure
from worker_vllm.models import cache, resume
from worker_vllm.models import hub as hub_module
from worker_vllm.models.download import Download

NAME = "org/model"


class Worker:
    """A worker's environment, and what its start does with a model's name."""

    def __init__(self, hub: FakeHub, home: Path) -> None:
        self.root = home / "root"
        self.cache = home / "cache"
        self.environ = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(self.cache), "HOME": str(home)}

    def configure(self, **variables: str) -> Configuration:
        self.environ |= {"MODEL_NAME": NAME, **variables}
        return configure(self.environ)

    def resolve(self, **variables: str) -> models.Resolution:
        return models.resolve(self.configure(**variables), self.environ, self.root)

    def start(self, **variables: str) -> Configuration:
        configuration = self.configure(**variables)
        resolution = models.resolve(configuration, self.environ, self.root)
        resolution.fetch()
        return resolution.placed(configuration, self.environ)

    def fails(self, **variables: str) -> StartupFailure:
        with pytest.raises(StartupFailure) as caught:
            self.start(**variables)
        return caught.value


@pytest.fixture
def worker(hub: FakeHub, tmp_path: Path) -> Worker:
    return Worker(hub, tmp_path)


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# ---- what is looked at and what is fetched


def test_facts_come_from_lists_and_small_files_alone(hub: FakeHub, worker: Worker) -> None:
    commit = hub.add(NAME, repositories.sharded())
    facts = models.look(NAME, environ=worker.environ, root=worker.root)
    assert (facts.source, facts.repository, facts.commit) == ("hub", NAME, commit)
    assert facts.config["architectures"] == ["LlamaForCausalLM"]
    assert (facts.weights.format, facts.weight_bytes) == ("safetensors", 40_000)
    assert facts.weights.complete
    assert facts.chat_template == repositories.TEMPLATE
    assert hub.asked("/store/") == []


def test_only_what_vllm_loads_is_downloaded(hub: FakeHub, worker: Worker) -> None:
    commit = hub.add(NAME, repositories.sharded())
    placed = worker.start()
    folder = Path(placed.engine["model"].value)
    assert folder == worker.cache / "models--org--model" / "snapshots" / commit
    assert files_in(folder) == repositories.NEEDED
    assert (folder / repositories.SHARDS[1]).read_bytes() == b"b" * 20_000


def test_the_served_name_stays_the_repository(hub: FakeHub, worker: Worker) -> None:
    hub.add(NAME, repositories.sharded())
    placed = worker.start()
    assert placed.served_model_names == (NAME,)
    assert placed.engine["served_model_name"].value == [NAME]


def test_a_downloaded_model_starts_offline_and_asks_the_hub_nothing_again(
    hub: FakeHub, worker: Worker
) -> None:
    hub.add(NAME, repositories.sharded())
    first = worker.start()
    hub.requests.clear()
    second = worker.start()
    assert hub.requests == []
    assert second.engine["model"] == first.engine["model"]
    assert second.environment["HF_HUB_OFFLINE"] == second.environment["TRANSFORMERS_OFFLINE"] == "1"


def test_a_revision_is_a_branch_or_a_commit(hub: FakeHub, worker: Worker) -> None:
    old = hub.add(NAME, repositories.sharded(hidden_size=1))
    new = hub.add(NAME, repositories.sharded(hidden_size=2))
    hub.repositories[NAME].branches["stable"] = old
    assert worker.start(MODEL_REVISION="stable").engine["model"].value.endswith(old)
    assert worker.start(MODEL_REVISION=new).engine["model"].value.endswith(new)
    assert worker.start(MODEL_REVISION="main").engine["model"].value.endswith(new)


def test_tokenizer_adapter_and_drafter_come_from_their_own_repositories(hub: FakeHub, worker: Worker) -> None:
    hub.add(NAME, repositories.sharded())
    hub.add("org/tokenizer", {**repositories.TOKENIZER, "model.safetensors": b"h" * 5000})
    hub.add("org/lora", repositories.adapter(rank=16))
    hub.add("org/draft", repositories.sharded(size=1000))
    configuration = worker.configure(
        TOKENIZER="org/tokenizer",
        LORA_MODULES="sql=org/lora",
        SPECULATIVE_CONFIG='{"model": "org/draft", "method": "draft_model", "num_speculative_tokens": 2}',
    )
    resolution = models.resolve(configuration, worker.environ, worker.root)
    resolution.fetch()
    placed = resolution.placed(configuration, worker.environ)
    tokenizer = Path(placed.engine["tokenizer"].value)
    assert files_in(tokenizer) == {"tokenizer.json", "tokenizer_config.json"}
    (adapter,) = placed.frontend["lora_modules"].value
    assert adapter["name"] == "sql"
    assert (Path(adapter["path"]) / "adapter_model.safetensors").stat().st_size == 1000
    drafter = Path(placed.engine["speculative_config"].value["model"])
    assert (drafter / repositories.SHARDS[0]).is_file()
    assert [(a.name, a.base, a.rank, a.bytes) for a in resolution.facts.adapters] == [
        ("sql", "org/model", 16, 1000)
    ]
    assert resolution.facts.tokenizer == "org/tokenizer"


def test_a_gguf_repository_is_narrowed_to_the_quantization_named(hub: FakeHub, worker: Worker) -> None:
    files = {"config.json": repositories.CONFIG, "m-Q4_K_M.gguf": b"q" * 100, "m-Q8_0.gguf": b"q" * 200}
    hub.add(NAME, files)
    facts = models.look(f"{NAME}:Q8_0", environ=worker.environ, root=worker.root)
    assert dict(facts.weights.files) == {"m-Q8_0.gguf": 200}


@given(st.text("abZ09_-./ é", max_size=12) | st.text("ab.-", min_size=90, max_size=100))
@example("org/model.git")
@example("a" * 97)
def test_what_is_taken_for_a_repository_is_one_to_the_hub_library(name: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
        is_valid = name.isascii() and name != ""
    except HFValidationError:
        is_valid = False
    assert bool(cache.REPOSITORY.fullmatch(name)) == is_valid


def test_a_config_is_read_from_the_hub_which_is_asked_once(hub: FakeHub, worker: Worker) -> None:
    hub.add(NAME, repositories.sharded())
    read = models.config_reader(worker.environ, worker.root)
    assert read(NAME, None) == repositories.CONFIG
    assert hub.asked("/store/") == []
    hub.requests.clear()
    hub.fail("/api/models", times=100, status=503)
    assert read("org/other", None) is None
    assert len(hub.requests) == 1


# ---- what goes wrong, said in one sentence


def test_a_model_that_the_hub_lacks_is_named_with_its_nearest_neighbour(hub: FakeHub, worker: Worker) -> None:
    hub.add("org/modell", repositories.sharded())
    failure = worker.fails()
    assert isinstance(failure, ConfigurationError)
    assert failure.in_one_line() == (
        "bad configuration: 127.0.0.1 has no org/model (or it is private: then set HF_TOKEN); "
        "did you mean org/modell?"
    )


def test_a_private_model_is_as_good_as_missing_to_others(hub: FakeHub, worker: Worker) -> None:
    hub.add(NAME, repositories.sharded(), private=True)
    hub.tokens = {"hf_stranger": set(), "hf_owner": {NAME}}
    assert "HF_TOKEN's account may not see it" in worker.fails(HF_TOKEN="hf_stranger").in_one_line()
    assert worker.start(HF_TOKEN="hf_owner").engine["model"].value.startswith(str(worker.cache))


def test_a_revision_that_does_not_exist_is_named(hub: FakeHub, worker: Worker) -> None:
    hub.add(NAME, repositories.sharded())
    failure = worker.fails(MODEL_REVISION="nightly")
    assert (failure.exit_code, failure.permanent) == (2, True)
    assert "org/model has no revision nightly" in failure.in_one_line()


@pytest.mark.parametrize(
    ("token", "remedy"),
    [("", "accept its terms at"), ("hf_stranger", "HF_TOKEN's account has no access to it")],
)
def test_a_gated_model_is_named_with_the_remedy(
    hub: FakeHub, worker: Worker, token: str, remedy: str
) -> None:
    hub.add(NAME, repositories.sharded(), gated=True)
    hub.tokens = {"hf_stranger": set()}
    failure = worker.fails(HF_TOKEN=token)
    assert "org/model is gated: " + remedy in failure.in_one_line()
    assert failure.permanent
    assert hub.asked("/store/") == []


def test_who_was_let_in_gets_a_gated_model(hub: FakeHub, worker: Worker) -> None:
    hub.add(NAME, repositories.sharded(), gated=True)
    hub.tokens = {"hf_friend": {NAME}}
    assert Path(worker.start(HF_TOKEN="hf_friend").engine["model"].value, "config.json").is_file()


def test_a_token_that_is_not_valid_is_said_and_not_shown(hub: FakeHub, worker: Worker) -> None:
    hub.add(NAME, repositories.sharded())
    failure = worker.fails(HF_TOKEN="hf_expired_long_ago")
    assert "127.0.0.1 refuses HF_TOKEN (HTTP 401)" in failure.in_one_line()
    assert "expired_long_ago" not in failure.message


def test_a_token_without_the_right_to_read_is_said(hub: FakeHub, worker: Worker) -> None:
    hub.add(NAME, repositories.sharded())
    hub.fail("GET /api/models/org/model/revision", status=403)
    assert "forbids reading org/model (HTTP 403)" in worker.fails().in_one_line()


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ({"status": 503}, "127.0.0.1 does not answer (HTTP 503), and org/model is not whole on this machine"),
        ({"status": 429}, "127.0.0.1 has had too many requests from here (HTTP 429): try again in some"),
        ({"status": 504}, "127.0.0.1 answers too slowly (HTTP 504)"),
        ({"status": 429, "headers": {"Retry-After": "3600"}}, "too many requests"),
    ],
)
def test_a_hub_in_trouble_is_told_from_a_wrong_name(
    hub: FakeHub, worker: Worker, fault: dict[str, Any], sentence: str
) -> None:
    hub.add(NAME, repositories.sharded())
    hub.fail("/api/models", times=100, **fault)
    failure = worker.fails()
    assert isinstance(failure, EngineStartError)
    assert not failure.permanent
    assert sentence in failure.in_one_line()


def test_a_hub_that_keeps_silent_is_called_slow(
    hub: FakeHub, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(hub_module, "ATTEMPTS", 2)
    hub.add(NAME, repositories.sharded())
    hub.fail("/api/models", times=2, seconds=0.3)
    assert "127.0.0.1 answers too slowly, and org/model is not whole" in worker.fails().in_one_line()


def test_a_hub_that_is_not_there_is_called_down(worker: Worker) -> None:
    failure = worker.fails(HF_ENDPOINT="http://127.0.0.1:9")
    assert "127.0.0.1 does not answer, and org/model is not whole on this machine" in failure.in_one_line()
    assert failure.exit_code == 3


def test_trouble_that_passes_is_waited_out(
    hub: FakeHub, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    hub.add(NAME, repositories.sharded())
    hub.fail("/api/models", times=2, status=503)
    hub.fail("/api/models", times=1, status=429, headers={"Retry-After": "0"})
    worker.start()
    assert caplog.text.count("trying again in") == 3


def test_the_doctor_does_not_wait_for_a_hub_in_trouble(hub: FakeHub, worker: Worker) -> None:
    hub.add(NAME, repositories.sharded())
    hub.fail("/api/models", times=100, status=503)
    with pytest.raises(EngineStartError, match="does not answer"):
        models.look(NAME, environ=worker.environ, root=worker.root)
    assert len(hub.requests) == 1


def test_offline_and_not_here_is_a_matter_of_settings(hub: FakeHub, worker: Worker) -> None:
    hub.add(NAME, repositories.sharded())
    failure = worker.fails(HF_HUB_OFFLINE="1")
    assert isinstance(failure, ConfigurationError)
    assert "forbids downloading it" in failure.in_one_line()
    assert hub.requests == []


def test_an_architecture_that_nothing_runs_is_said_before_weights_are_fetched(
    hub: FakeHub, worker: Worker
) -> None:
    hub.add(NAME, repositories.sharded(architectures=["LlamaForCausalLLM"], model_type="llamma"))
    failure = worker.fails()
    assert "is a LlamaForCausalLLM, which neither vLLM nor transformers has (nearest: " in failure.message
    assert "LlamaForCausalLM" in failure.message
    assert hub.asked("/store/") == []


def test_a_model_with_code_of_its_own_needs_the_operators_word(hub: FakeHub, worker: Worker) -> None:
    own = {"auto_map": {"AutoConfig": "configuration_own.C", "AutoModelForCausalLM": "modeling_own.M"}}
    config = {"architectures": ["OwnForCausalLM"], "model_type": "own", **own}
    hub.add(NAME, {**repositories.sharded(**config), "modeling_own.py": "x = 1"})
    assert "set TRUST_REMOTE_CODE=true" in worker.fails().in_one_line()
    folder = Path(worker.start(TRUST_REMOTE_CODE="true").engine["model"].value)
    assert (folder / "modeling_own.py").is_file()


# ---- downloads


def test_a_cut_connection_is_taken_up_where_it_broke(
    hub: FakeHub, worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 4096)
    hub.add(NAME, repositories.sharded(size=50_000))
    hub.fail("GET /store/", cut_after=20_000)
    folder = Path(worker.start().engine["model"].value)
    assert (folder / repositories.SHARDS[0]).read_bytes() == b"a" * 50_000
    (resumed,) = hub.asked(r"GET /store/.*bytes=\d+-$")
    assert int(resumed.rsplit("=", 1)[1].rstrip("-")) > 0
    assert hub.store_url not in caplog.text


def test_a_connection_that_breaks_before_a_files_first_byte_is_tried_again(
    hub: FakeHub, worker: Worker
) -> None:
    hub.add(NAME, repositories.sharded(size=50_000))
    hub.fail("GET /store/", cut_after=0)
    folder = Path(worker.start().engine["model"].value)
    assert (folder / repositories.SHARDS[0]).read_bytes() == b"a" * 50_000
    assert len(hub.asked("GET /store/")) == 3


def _part(worker: Worker, data: bytes, name: str = "1234abcd") -> Path:
    """The beginning of a large file, as a worker that was killed a minute ago leaves it."""
    blobs = worker.cache / "models--org--model" / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    path = blobs / f"{hashlib.sha256(b'a' * 50_000).hexdigest()}.{name}.incomplete"
    path.write_bytes(data)
    os.utime(path, (time.time() - 60, time.time() - 60))
    return path


def test_what_a_dead_worker_left_of_a_file_is_gone_on_with(
    hub: FakeHub, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, repositories.sharded(size=50_000))
    _part(worker, b"a" * 10_000, "5678cdef")
    part = _part(worker, b"a" * 30_000)
    (download,) = worker.resolve().downloads
    assert download.bytes_missing() < 75_000  # the disk need not take them twice
    folder = Path(worker.start().engine["model"].value)
    assert (folder / repositories.SHARDS[0]).read_bytes() == b"a" * 50_000
    assert len(hub.asked(r"GET /store/.*bytes=30000-$")) == 1
    assert len(hub.asked("GET /store/")) == 2
    assert list(part.parent.glob("*.incomplete")) == []


@pytest.mark.parametrize("left", [b"x" * 30_000, b"x" * 50_000])
def test_a_part_that_is_damaged_is_found_by_the_files_hash_and_fetched_anew(
    hub: FakeHub, worker: Worker, left: bytes
) -> None:
    hub.add(NAME, repositories.sharded(size=50_000))
    _part(worker, left)
    folder = Path(worker.start().engine["model"].value)
    assert (folder / repositories.SHARDS[0]).read_bytes() == b"a" * 50_000


def test_a_part_that_may_still_grow_or_is_too_large_is_left_alone(hub: FakeHub, worker: Worker) -> None:
    hub.add(NAME, repositories.sharded(size=50_000))
    growing, large = _part(worker, b"a" * 30_000), _part(worker, b"a" * 60_000, "5678cdef")
    os.utime(growing)
    folder = Path(worker.start().engine["model"].value)
    assert (folder / repositories.SHARDS[0]).read_bytes() == b"a" * 50_000
    assert hub.asked("GET /store/.*bytes=.") == []
    assert (growing.is_file(), large.is_file()) == (True, False)


def test_a_large_part_is_waited_for_until_it_is_surely_dead(
    hub: FakeHub, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner died a moment ago, and this worker has waited for the lock."""
    hub.add(NAME, repositories.sharded(size=50_000))
    part = _part(worker, b"a" * 30_000)
    os.utime(part)
    slept: list[float] = []

    def pass_time(seconds: float) -> None:
        slept.append(seconds)
        os.utime(part, (1, 1))

    monkeypatch.setattr(resume, "WORTH_BYTES", 20_000)
    monkeypatch.setattr(resume.time, "sleep", pass_time)
    folder = Path(worker.start().engine["model"].value)
    assert (folder / repositories.SHARDS[0]).read_bytes() == b"a" * 50_000
    assert len(hub.asked(r"GET /store/.*bytes=30000-$")) == 1
    assert slept == [pytest.approx(5.1)]


def test_what_the_hub_librarys_last_attempt_left_is_gone_on_with(
    hub: FakeHub, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut is taken up by the library itself, a refusal after it is not."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 4096)
    hub.add(NAME, repositories.sharded(size=50_000))
    sha = hashlib.sha256(b"a" * 50_000).hexdigest()
    hub.fail(f"GET /store/{sha}", cut_after=20_000)
    hub.fail(f"GET /store/{sha}", times=2, status=503)
    folder = Path(worker.start().engine["model"].value)
    assert (folder / repositories.SHARDS[0]).read_bytes() == b"a" * 50_000
    assert len(hub.asked(f"GET /store/{sha}$")) == 1  # from its beginning once


def test_a_download_that_failed_goes_on_with_the_files_that_are_missing(hub: FakeHub, worker: Worker) -> None:
    hub.add(NAME, repositories.sharded())
    shard = next(iter(hub.repositories[NAME].commits.values()))[repositories.SHARDS[1]]
    hub.fail(f"GET /store/{hashlib.sha256(shard).hexdigest()}", times=100, status=500)
    assert "does not answer (HTTP 500)" in worker.fails().in_one_line()
    hub.faults.clear()
    hub.requests.clear()
    worker.start()
    assert len(hub.asked("GET /store/")) == 1


def test_attempts_are_counted_anew_whenever_something_came(
    hub: FakeHub, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """The first of seven shards fails once, the second twice, and so on: more failures than attempts."""
    names = [f"model-{number:05}-of-00007.safetensors" for number in range(1, 8)]
    shards = {name: name.encode() * 500 for name in names}
    index = {"weight_map": {name: name for name in names}}
    hub.add(NAME, {**repositories.sharded(), "model.safetensors.index.json": index, **shards})
    for number, data in enumerate(shards.values(), start=1):
        hub.fail(f"GET /store/{hashlib.sha256(data).hexdigest()}", times=number, status=500)
    folder = Path(worker.start().engine["model"].value)
    assert {name for name in names if (folder / name).is_file()} == set(names)
    assert caplog.text.count("going on in") >= 7


def test_a_place_that_cannot_be_written_to_is_no_fault_of_the_hub(
    hub: FakeHub, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, repositories.sharded())

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system", "/volume/x")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", refuse)
    failure = worker.fails()
    assert "cannot be written (Read-only file system: /volume/x)" in failure.message
    assert failure.exit_code == 3


def test_an_incomplete_snapshot_is_completed(hub: FakeHub, worker: Worker) -> None:
    commit = hub.add(NAME, repositories.sharded())
    partial = {name: data for name, data in repositories.sharded().items() if name != repositories.SHARDS[1]}
    repositories.cached(worker.cache, NAME, partial, commit)
    folder = Path(worker.start().engine["model"].value)
    assert (folder / repositories.SHARDS[1]).is_file()


def test_what_dead_downloads_left_is_removed(hub: FakeHub, worker: Worker) -> None:
    hub.add(NAME, repositories.sharded())
    blobs = worker.cache / "models--org--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc.1234abcd.incomplete").write_bytes(b"x" * 100)
    os.utime(blobs / "abc.1234abcd.incomplete", (1, 1))
    (blobs / "def.1234abcd.incomplete").write_bytes(b"x" * 100)
    worker.start()
    assert [path.name for path in blobs.glob("*.incomplete")] == ["def.1234abcd.incomplete"]


def test_a_full_disk_is_said_before_the_download_begins(
    hub: FakeHub, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, repositories.sharded())
    free = type("Usage", (), {"free": 10_000})
    monkeypatch.setattr("worker_vllm.models.download.shutil.disk_usage", lambda _: free)
    failure = worker.fails()
    assert failure.permanent
    assert "org/model: " in failure.message
    assert "where 0.0 MB are free: raise the endpoint's container disk" in failure.message
    assert hub.asked("/store/") == []


def test_a_download_tells_how_far_it_is(
    hub: FakeHub, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "worker_vllm")
    hub.add(NAME, repositories.sharded(size=40_000))
    hub.bytes_per_second = 200_000
    (download,) = worker.resolve().downloads
    download.run(tell_every_seconds=0.05)
    assert "downloading org/model: 0." in caplog.text
    assert " MB/s, " in caplog.text
    assert " left" in caplog.text


def test_a_file_of_another_size_than_announced_is_not_served(hub: FakeHub, worker: Worker) -> None:
    hub.add(NAME, repositories.sharded())
    (download,) = worker.resolve().downloads
    download.run()
    shard = (download.directory / repositories.SHARDS[0]).resolve()
    shard.write_bytes(b"short")
    with pytest.raises(EngineStartError, match="was not what it announced"):
        download.run()


_TWO = """
import logging, sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
logging.basicConfig(level=logging.ERROR)
from worker_vllm.models.hub import Hub
from worker_vllm.models import describe, weights
from worker_vllm.models.download import Download
hub = Hub({"HF_ENDPOINT": sys.argv[2]}, Path(sys.argv[3]))
listing = hub.listing("org/model", None)
facts = hub.facts(listing, "org/model")
print("ready", flush=True)
sys.stdin.readline()
print(Download(hub, listing, weights.wanted(listing.files, facts.weights)).run(), flush=True)
"""


def test_two_workers_on_one_volume_fetch_each_file_once(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, repositories.sharded(size=60_000))
    hub.bytes_per_second = 150_000  # slow enough for both to want the same file
    source = Path(models.__file__).parents[2]
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", _TWO, str(source), hub.url, str(tmp_path / "volume")]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)
        for _ in range(2)
    ]
    try:
        for process in workers:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in workers:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        folders = {process.communicate(timeout=60)[0].strip() for process in workers}
    finally:
        for process in workers:
            process.kill()
            process.wait()
    assert [process.returncode for process in workers] == [0, 0]
    (folder,) = folders
    assert Path(folder, repositories.SHARDS[0]).read_bytes() == b"a" * 60_000
    assert Path(folder, repositories.SHARDS[1]).read_bytes() == b"b" * 60_000
    assert len(hub.asked("GET /store/")) == 2


# ---- what is on this machine


def test_a_hub_outage_is_invisible_where_the_model_is_whole(hub: FakeHub, worker: Worker) -> None:
    repositories.cached(worker.cache, NAME, repositories.sharded())
    begun = time.monotonic()
    placed = worker.start(HF_ENDPOINT="http://127.0.0.1:9")
    assert placed.engine["model"].value.endswith("c" * 40)
    assert time.monotonic() - begun < 1


def test_what_may_be_incomplete_serves_where_the_hub_does_not_answer(
    hub: FakeHub, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights and configuration are there, the tokenizer is not: the hub is asked once."""
    files = repositories.sharded()
    del files["tokenizer.json"]
    repositories.cached(worker.cache, NAME, files)
    hub.fail("/api/models", times=100, status=503)
    placed = worker.start()
    assert placed.engine["model"].value.endswith("c" * 40)
    assert "does not answer" in caplog.text
    assert len(hub.requests) == 1


def test_a_download_knows_what_is_here(hub: FakeHub, worker: Worker) -> None:
    hub.add(NAME, repositories.sharded())
    (download,) = worker.resolve().downloads
    assert isinstance(download, Download)
    small = download.bytes_here()
    assert download.bytes_missing() + small == sum(file.size for file in download.files.values())
    download.run()
    assert download.bytes_missing() == 0
