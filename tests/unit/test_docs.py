"""The documents name what the code has: fields, limits, errors, routes, modules, commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.documents import ARCHITECTURE, JOBS, README, RELIABILITY, ROOT, blocks, rows, section, shape, words
from tests.test_architecture import MAY_IMPORT, PACKAGE, ROOMS
from worker_vllm import errors, job_fields
from worker_vllm.cli import VERBS
from worker_vllm.engine import routes

DOCUMENTS = (README, JOBS, ARCHITECTURE)
FIELD_TABLES = (
    "PROMPT_FIELDS",
    "CHAT_FIELDS",
    "BATCH_FIELDS",
    "ENVELOPE_FIELDS",
    "IGNORED_FIELDS",
    "OPERATOR_FIELDS",
    "SAMPLING_FIELDS",
    "SAMPLING_ALIASES",
    "SAMPLING_EXTRAS",
    "SAMPLING_RELICS",
    "REJECTED_SAMPLING",
    "STRUCTURED_FIELDS",
    "CONSTRAINTS",
    "CONSTRAINT_FLAGS",
    "CONSTRAINT_RELICS",
    "RESPONSE_FORMATS",
)
# What a limit is called where its figure is no help to a reader.
LIMIT_WORDS = {"MAX_INTEGER": "64 bits"}


def names(pattern: str, *documents: Path) -> set[str]:
    """What follows a command's name anywhere in the documents."""
    return {name for document in documents for name in re.findall(pattern, document.read_text())}


# --- docs/jobs.md


@pytest.mark.parametrize("table", FIELD_TABLES)
def test_every_field_of_a_job_is_explained(table: str) -> None:
    assert set(getattr(job_fields, table)) - words(JOBS) == set()


def test_no_table_of_fields_is_forgotten() -> None:
    not_fields = {"NATIVE_TOOL_CHOICES", "HOISTED_FIELDS", "MEANT", "METHODS", "METHODS_WITH_BODY"}
    not_fields |= {"CHAT_ROUTE", "BODY_INTEGER_LIMITS", "BODY_LIST_LIMITS", "BODY_TEXT_LIMITS"}
    not_fields |= {"LISTS_OF_PARTS", "LARGE_JOB", "BODY_OBJECTS", "BODY_LISTS_OF_OBJECTS"}
    constants = {name for name in vars(job_fields) if name.isupper() and not name.startswith("MAX_")}
    assert constants - not_fields == set(FIELD_TABLES)


def test_every_limit_is_told() -> None:
    told = section(JOBS, "## Limits")
    limits = {name: value for name, value in vars(job_fields).items() if name.startswith("MAX_")}
    missing = [
        name
        for name, value in limits.items()
        if not re.search(rf"(?<![\d,]){LIMIT_WORDS.get(name, f'{value:,}')}(?![\d,])", told)
    ]
    assert missing == []


def test_every_error_of_a_job_is_told_with_its_code() -> None:
    told = {(cells[0], cells[1]) for cells in rows(section(JOBS, "## Errors")) if cells[0].isdigit()}
    assert told == {(str(error.http_status), f"`{error.type}`") for error in job_errors(errors.WorkerError)}


def job_errors(base: type[errors.WorkerError]) -> Iterator[type[errors.WorkerError]]:
    """The classes below `base`; what vLLM's app answers has whatever code and type that gave it."""
    for error in base.__subclasses__():
        if error is not errors.ApplicationError:
            yield from (error, *job_errors(error))


def test_every_route_is_named_as_open_or_the_operators() -> None:
    opened, _, closed = section(JOBS, "### Which routes are open").partition("What changes or inspects")
    found = [set(re.findall(r"`(/[^`]+)`", text)) for text in (opened, closed)]
    assert found == [set(routes.INFERENCE_ROUTES), set(routes.OPERATOR_ROUTES)]


def test_every_example_of_a_job_has_its_answer() -> None:
    examples = [block for block in blocks(JOBS) if block.language == "json"]
    assert len(examples) > 10
    assert [block.line for block in examples if block.prints is None] == []


# --- docs/architecture.md


def room_rows() -> dict[str, list[str]]:
    table = section(ARCHITECTURE, "## The rooms")
    return {cells[0]: cells[1:] for cells in rows(table)}


def modules_of(room: str) -> set[str]:
    """A room's modules by their file names; a package's own `__init__` is not one."""
    found = set()
    for member in ROOMS[room]:
        folder = PACKAGE / member
        found |= {path.stem for path in folder.glob("*.py")} - {"__init__"} if folder.is_dir() else {member}
    return found


def test_the_map_shows_every_room() -> None:
    assert room_rows().keys() == ROOMS.keys()


@pytest.mark.parametrize("room", ROOMS)
def test_the_map_shows_a_rooms_modules_and_what_it_may_import(room: str) -> None:
    modules, _, may_import = room_rows()[room]
    assert set(re.findall(r"`(\w+)`", modules)) == modules_of(room)
    assert set(filter(None, may_import.split(", "))) == MAY_IMPORT[room]


def test_files_and_folders_that_the_map_names_exist() -> None:
    paths = {
        name.split(":")[0]
        for name in re.findall(r"`([\w/]+(?:/|\.py(?::[\w.]+)?))`", ARCHITECTURE.read_text())
    }
    assert len(paths) > 10
    assert [path for path in paths if not ((PACKAGE / path).exists() or (ROOT / path).exists())] == []


# --- docs/reliability.md


def test_every_test_that_a_promise_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", RELIABILITY.read_text())
    assert len(named) > 3
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or (f"def {name}(" if name else "") not in (ROOT / path).read_text()
    ]
    assert missing == []


# --- commands and links


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = names(r"`make ([a-z-]+)", *DOCUMENTS) | names(r"^make ([a-z-]+)", README)
    assert {"run", "test"} <= named <= targets


def test_build_arguments_exist() -> None:
    declared = set(re.findall(r"^ARG (\w+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    assert names(r"--build-arg (\w+)", *DOCUMENTS) <= declared


def test_verbs_exist() -> None:
    assert names(r"worker-vllm ([a-z]+)", *DOCUMENTS) <= set(VERBS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    headings = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)", text, re.M)
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings
        elif not target.startswith("https://"):
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", (README, JOBS), ids=lambda path: path.name)
def test_every_block_is_of_a_kind_that_a_test_runs(document: Path) -> None:
    """See tests/vllm/test_readme.py; `make` and `docker` lines are looked at above."""
    for block in blocks(document):
        assert block.language in ("bash", "json", "python"), block.line


# --- how examples are compared


def item(text: str, **changes: Any) -> dict[str, Any]:
    return {"choices": [{"tokens": [text]}], "usage": {"input": 5, "output": len(text)}, **changes}


def test_examples_may_differ_in_what_the_model_says() -> None:
    assert shape([item("a"), item("bc")]) == shape([item("defg")])
    event = 'data: {"text": "%s"}\n\n'
    assert shape([event % "a", event % "b" + "data: [DONE]\n\n"]) == shape([event % "c" + "data: [DONE]\n\n"])


@pytest.mark.parametrize(
    "other",
    [
        item("a", prompt_index=0),
        item("a", usage={"input": 6, "output": 1}),
        item("a", usage={"input": 5}),
        item("a", choices=[{"tokens": [None]}]),
        item("a", choices=[{"tokens": ["a"], "error": {"code": 504}}]),
        [item("a")],
    ],
)
def test_examples_may_not_differ_in_anything_else(other: Any) -> None:
    assert shape(item("a")) != shape(other)


@pytest.mark.parametrize("other", ['{"code": 404}', '{"code": 400, "param": null}', "not JSON"])
def test_errors_are_compared_inside_their_text(other: str) -> None:
    assert shape({"error": '{"code": 400}'}) != shape({"error": other})
