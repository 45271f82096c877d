"""The one AsyncLLM of this process: built before any event loop, made ready in the job loop, stopped after.

AsyncLLM belongs to the first loop that awaits it. Awaiting it in one loop and using it in another ends in
EngineDeadError at the first request, so `start` awaits nothing and `ready` does everything that must.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
from argparse import Namespace
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any, TypeVar

from worker_vllm import vllm_compat, vllm_media
from worker_vllm.addresses import Exceptions
from worker_vllm.configuration import Configuration
from worker_vllm.engine import caches, rendering
from worker_vllm.engine.causes import Causes
from worker_vllm.engine.demand import Streams
from worker_vllm.engine.frontend import Frontend
from worker_vllm.engine.record import JobRecord, current_record, observe
from worker_vllm.errors import EngineStartError
from worker_vllm.media import MediaLimits
from worker_vllm.phases import Phases
from worker_vllm.settings import WorkerSettings
from worker_vllm.vllm_errors import translated

logger = logging.getLogger(__name__)

T = TypeVar("T")

GC_THRESHOLD = 50_000
"""Objects made before the collector looks for cycles: with Python's 700 it takes a seventh of a short job's
time. What was there before the first job is frozen."""
OPEN_FILES = 65_535
"""The soft limit on open files that `vllm serve` asks for: many streams at once need it."""
USUAL_TOKENS = 1024
"""Prompt and answer of a usual request, for `EngineHost.capacity`: what a longer context allows is seldom
used."""


class EngineLoad:
    """The scheduler's figures after its latest step, over all engines (data parallelism has several).

    They stay at zero where the operator has switched vLLM's statistics off, but for `step_count`.

    Attributes:
        step_count: how many steps have been seen.
    """

    def __init__(self) -> None:
        self._steps: dict[int, Any] = {}
        self.step_count = 0

    def note(self, engine_index: int, stats: Any) -> None:
        """Take the statistics of one step, None where there are none."""
        if stats is not None:
            self._steps[engine_index] = stats
        self.step_count += 1

    @property
    def running(self) -> int:
        """Sequences in the running batch."""
        return sum(stats.num_running_reqs for stats in self._steps.values())

    @property
    def waiting(self) -> int:
        """Sequences that the scheduler has not begun."""
        return sum(stats.num_waiting_reqs for stats in self._steps.values())

    @property
    def kv_cache_usage(self) -> float:
        """The fullest engine's used share of its KV cache, 0 to 1."""
        return max((float(stats.kv_cache_usage) for stats in self._steps.values()), default=0.0)


class EngineHost:
    """Owns the AsyncLLM and vLLM's own app around it.

    Attributes:
        llm: the AsyncLLM.
        args: vLLM's parsed arguments.
        load: the scheduler's latest figures.
        served_model_names: the names that requests may use; the first is the default.
        app: vLLM's FastAPI app; after `ready`.
        tasks: what the model can do, as vLLM names it ("generate", "embed", …); after `ready`.
        frontend: rendering, adapters and sampling parameters for native jobs; after `ready`.
    """

    app: Any
    tasks: tuple[str, ...]
    frontend: Frontend

    def __init__(self, llm: Any, args: Namespace, load: EngineLoad) -> None:
        self.llm = llm
        self.args = args
        self.load = load
        self.served_model_names: tuple[str, ...] = tuple(args.served_model_name or [args.model])
        self._ready: asyncio.Task[None] | None = None
        self._lifespan = AsyncExitStack()
        self._streams = Streams()
        self._stopped = False

    @classmethod
    def start(cls, configuration: Configuration, environ: MutableMapping[str, str]) -> EngineHost:
        """Build the engine that `configuration` asks for; see `from_args`.

        Args:
            environ: what the engine's processes inherit.

        Raises:
            ConfigurationError: as `from_args`.
            EngineStartError: in the words of the process that failed first.
        """
        caches.settle(environ)
        with Phases().phase("import vLLM"):
            args = vllm_compat.namespace(configuration)
        causes = Causes(environ, vllm_compat.load("DEFAULT_LOGGING_CONFIG"))
        try:
            return cls.from_args(args, _media_limits(configuration.worker))
        except EngineStartError as error:
            if (cause := causes.first()) is None:
                raise
            raise EngineStartError(cause, permanent=error.permanent) from error
        finally:
            causes.close()

    @classmethod
    def from_args(cls, args: Namespace, media: MediaLimits | None = None) -> EngineHost:
        """Build the engine from vLLM's parsed arguments. Call it before any event loop runs; it blocks until
        the model is loaded. The caller stops what it gets.

        Args:
            media: what media URLs of requests may cost and where they may lead.

        Raises:
            ConfigurationError: arguments that contradict each other.
            EngineStartError: the engine could not be built.
        """
        _raise_open_file_limit()
        vllm_compat.prepare(args)
        vllm_media.install(replace(media or MediaLimits(), domains=tuple(args.allowed_media_domains or ())))
        load = EngineLoad()
        return cls(vllm_compat.create_engine(args, observe, load.note), args, load)

    async def ready(self) -> None:
        """Do what needs the job loop, once: however many jobs ask, the first one starts it and all wait.

        A job that is cancelled while it waits does not stop it for the others.

        Raises:
            EngineStartError: the app could not be built; every later call raises it again.
            EngineDeadError: the engine died meanwhile.
        """
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_task(self._make_ready())
        await asyncio.shield(self._ready)

    async def _make_ready(self) -> None:
        with translated():
            await self.llm.reset_mm_cache()  # the dummy inputs of memory profiling are still in it
            self.tasks = tuple(await self.llm.get_supported_tasks())
        # vLLM's error handlers tell uvicorn's server of a dead engine; here `errored` is asked instead
        server = SimpleNamespace(should_exit=False)
        self.app = await vllm_compat.create_app(self.llm, self.args, self.tasks, server)
        self.frontend = Frontend(self.llm, self.app.state)
        await self._lifespan.enter_async_context(self.app.router.lifespan_context(self.app))
        gc.set_threshold(GC_THRESHOLD)
        rendering.keep_short_work(self.llm)

    @property
    def capacity(self) -> int:
        """How many requests of usual length the engine can run together: its batch limit, or fewer where
        the KV cache holds fewer. Constant, and known as soon as the engine is built."""
        config = self.llm.vllm_config
        limit = int(config.scheduler_config.max_num_seqs)
        blocks, block_size = config.cache_config.num_gpu_blocks, config.cache_config.block_size
        if not blocks or not block_size:  # a model without a KV cache
            return limit
        usual_tokens = min(USUAL_TOKENS, config.model_config.max_model_len)
        return max(1, min(limit, blocks * block_size // usual_tokens))

    @property
    def errored(self) -> bool:
        """Whether the engine is gone: nothing can be generated in this process any more."""
        return bool(self.llm.errored)

    @property
    def follows_every_way(self) -> bool:
        """Whether a constraint can stall the engine (`constraint_ways`): all backends but guidance, which
        bounds its own work, are taken for xgrammar, vLLM's first choice."""
        config = getattr(self.args, "structured_outputs_config", None)
        backend = config.get("backend") if isinstance(config, dict) else getattr(config, "backend", None)
        return backend != "guidance"

    @property
    def unfinished_requests(self) -> int:
        """Engine requests that have begun and not ended, sequences of one request counted singly."""
        return int(self.llm.output_processor.get_num_unfinished_requests())

    @property
    def step_count(self) -> int:
        """How many steps the engine has made, as far as they are told of: see `EngineLoad`."""
        return self.load.step_count

    async def attend(self, chunks: AsyncGenerator[T, None], *, at_pace: bool) -> AsyncGenerator[T, None]:
        """Pass one job's chunks on, and leave nothing of it in the engine where that ends before its end.

        Args:
            at_pace: whether the engine makes an output when the job's reader asks for one, and not of each
                token; see `demand`. The engines ask, through the job's record.

        AsyncLLM aborts a request whose outputs are closed or cancelled. It cannot where the cancellation
        falls between the request's registration and its first output, or where a route's own generator is
        dropped unclosed and waits for the garbage collector. A job that ends by itself is left alone: a
        response in the background runs on.
        """
        record = current_record.get()
        ended = False
        try:
            async with AsyncExitStack() as exits:
                await exits.enter_async_context(aclosing(chunks))
                if at_pace and record is not None:
                    record.demand = exits.enter_context(self._streams.open())
                async for chunk in chunks:
                    yield chunk
            ended = True
        finally:
            if not ended and record is not None:
                await self._abort_unfinished(record)

    def has_begun(self, record: JobRecord) -> bool:
        """Whether the engine has made a token for one of the job's requests. vLLM knows it also of a plain
        answer, which is handed over at its end."""
        states = (vllm_compat.states_of(self.llm, request) for request in record.unfinished)
        return any(not state.is_prefilling for state in chain.from_iterable(states))

    async def cut_short(self, record: JobRecord) -> bool:
        """Let the job's requests end with what they have so far: vLLM hands that over when it aborts them.
        False where there is none, or no engine to ask."""
        if not record.unfinished or self.errored:
            return False
        await self.llm.abort(list(record.unfinished))
        return True

    async def _abort_unfinished(self, record: JobRecord) -> None:
        await self.cut_short(record)
        record.unfinished.clear()

    async def close(self) -> None:
        """Leave the app's lifespan. Optional: a loop that is closed properly does it too. Repeatable."""
        await self._lifespan.aclose()

    def stop(self) -> None:
        """End the engine's processes. Synchronous and repeatable; after the job loop has ended."""
        if not self._stopped:
            self._stopped = True
            self.llm.shutdown()


def _media_limits(worker: WorkerSettings) -> MediaLimits:
    return MediaLimits(
        max_bytes=int(worker.media_max_mb * 1_000_000),
        timeout_seconds=worker.media_fetch_timeout_s,
        private=Exceptions.parse(worker.media_allowed_private or ""),
    )


def _raise_open_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < OPEN_FILES:
        logger.warning("at most %d files can be open here; many streams at once may need more", hard)
