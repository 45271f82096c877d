"""Engines for the tests in this folder: real ones on the CPU, one per model, for the whole session.

Each is built outside the event loop and made ready inside it, as in the worker.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests import models
from tests.vllm import adapters
from worker_vllm import vllm_compat
from worker_vllm.engine.lifecycle import EngineHost

FOLDER = Path(__file__).parent
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # the worker must take it for a variable of another program: it guards vLLM's HTTP port, which is not used
    "VLLM_API_KEY": "unused",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.engine)
            # the first test of each engine waits for it to start
            item.add_marker(pytest.mark.timeout(600))
            # one loop for all: an AsyncLLM belongs to the loop that awaited it first
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            # vLLM and torch warn of their own affairs
            for rule in ("ignore", "error:::worker_vllm", "error:coroutine:RuntimeWarning"):
                item.add_marker(pytest.mark.filterwarnings(rule))


@pytest.fixture(scope="session")
def vllm_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setitem(os.environ, name, value)
        yield


def build(folder: Path, *flags: str) -> EngineHost:
    """An engine with the arguments that `vllm serve folder flags…` would have."""
    parser = vllm_compat.load("make_arg_parser")(vllm_compat.load("FlexibleArgumentParser")())
    return EngineHost.from_args(parser.parse_args(["--model", str(folder), *flags]))


@pytest.fixture(scope="session")
def tiny_engine(vllm_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHost]:
    adapter = adapters.make(models.tiny(), tmp_path_factory.mktemp("adapter"))
    names = ("--served-model-name", "tiny", "second-name")
    loras = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"shifted={adapter}")
    host = build(models.tiny(), "--enforce-eager", *names, *loras, "--max-model-len", "512")
    yield host
    host.stop()


@pytest.fixture(scope="session")
def demo_engine(vllm_environment: None) -> Iterator[EngineHost]:
    host = build(models.demo(), "--enforce-eager", "--served-model-name", "demo", "--max-model-len", "1024")
    yield host
    host.stop()


@pytest.fixture(scope="session")
def embedding_engine(vllm_environment: None) -> Iterator[EngineHost]:
    host = build(models.embedding(), "--enforce-eager", "--served-model-name", "minilm")
    yield host
    host.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def tiny(tiny_engine: EngineHost) -> AsyncIterator[EngineHost]:
    """Two random layers and the adapter "shifted": fast nonsense, for all that is not about the text."""
    await tiny_engine.ready()
    yield tiny_engine
    await tiny_engine.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def demo(demo_engine: EngineHost) -> AsyncIterator[EngineHost]:
    """SmolLM2-135M: real answers."""
    await demo_engine.ready()
    yield demo_engine
    await demo_engine.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def embedding(embedding_engine: EngineHost) -> AsyncIterator[EngineHost]:
    """MiniLM: embeddings, score and rerank."""
    await embedding_engine.ready()
    yield embedding_engine
    await embedding_engine.close()
