"""The first exception that an engine process logs is found again in the parent."""

from __future__ import annotations

import json
import logging
import logging.config
import subprocess
import sys
from pathlib import Path

import pytest

from worker_vllm.engine.causes import CONFIG_VARIABLE, Causes

CONFIG = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"vllm": {"class": "logging.NullHandler"}},
    "loggers": {"vllm": {"handlers": ["vllm"], "level": "INFO", "propagate": False}},
}
CHILD = """
import json, logging, logging.config, os, sys
logging.config.dictConfig(json.load(open(os.environ["VLLM_LOGGING_CONFIG_PATH"])))
try:
    raise ValueError("no room\\nfor\\nmore")
except ValueError:
    logging.getLogger("vllm.core").exception("prompt: secret")
"""


@pytest.fixture
def environ() -> dict[str, str]:
    return {}


def test_the_first_exception_logged_here_is_the_cause(environ):
    causes = Causes(environ, CONFIG)
    try:
        for message in ("first", "second"):
            try:
                raise RuntimeError(message)
            except RuntimeError:
                logging.getLogger("vllm.worker").exception("failed")
        assert causes.first() == "RuntimeError: first"
    finally:
        causes.close()


def test_a_spawned_child_tells_type_and_first_line_and_nothing_of_the_log_text(environ):
    causes = Causes(environ, CONFIG)
    try:
        environment = {"PYTHONPATH": ":".join(sys.path), **environ}
        subprocess.run([sys.executable, "-c", CHILD], env=environment, check=True, timeout=30)
        assert causes.first() == "ValueError: no room"
    finally:
        causes.close()


def test_nothing_logged_is_no_cause(environ):
    causes = Causes(environ, CONFIG)
    try:
        logging.getLogger("vllm").error("an error without an exception")
        assert causes.first() is None
    finally:
        causes.close()


def test_a_logging_configuration_that_the_user_chose_stays(environ):
    environ[CONFIG_VARIABLE] = "/theirs.json"
    causes = Causes(environ, CONFIG)
    causes.close()
    assert environ == {CONFIG_VARIABLE: "/theirs.json"}


def test_closing_twice_leaves_no_file_variable_or_handler(environ):
    before = list(logging.getLogger("vllm").handlers)
    causes = Causes(environ, CONFIG)
    config = Path(environ[CONFIG_VARIABLE])
    assert json.loads(config.read_text())["loggers"]["vllm"]["handlers"] == ["vllm", "exceptions"]
    causes.close()
    causes.close()
    assert not config.parent.exists()
    assert environ == {}
    assert logging.getLogger("vllm").handlers == before
