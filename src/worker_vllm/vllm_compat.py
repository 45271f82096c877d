"""Everything that depends on where vLLM keeps things: the only module that names vLLM, torch or transformers.

vLLM moves names between modules at nearly every release, so each name stands in `vllm_homes` with its
addresses and `load` tries them. Nothing is imported until it is asked for.
"""

from __future__ import annotations

import gc
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from worker_vllm import errors, installed
from worker_vllm.vllm_homes import HOMES, OPTIONAL_HOMES

if TYPE_CHECKING:
    from worker_vllm.configuration import Configuration

_FOR_AN_HTTP_PORT = frozenset({"CORSMiddleware", "PrometheusInstrumentatorMiddleware"})
"""Layers of vLLM's app that serve browsers of other origins, and count what comes in at the port, by route.
There is no port here, and together they take a twentieth of a short job's time."""

Observer = Callable[..., AsyncGenerator[Any, None]]
"""Wraps one engine request's outputs: (outputs, sampling or pooling params, request id) to outputs. Where the
request generates, a function follows that gives vLLM's states of a running request by its id."""


@cache
def load(name: str) -> Any:
    """The object that vLLM calls `name`, or None for an optional one that this version lacks.

    Raises:
        ImportError: no address holds it: this vLLM is outside the supported range.
    """
    for home in HOMES.get(name, OPTIONAL_HOMES.get(name, ())):
        try:
            with _nothing_collected():
                module = import_module(home)
            return getattr(module, name)
        except (ImportError, AttributeError):
            continue
    if name in OPTIONAL_HOMES:
        return None
    raise ImportError(
        f"vLLM {installed.vllm_version()} has no {name}; this worker supports vLLM 0.26 to 0.33"
    )


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """In the block the garbage collector rests, and what was made until its end it never walks: an import's
    objects stay. Walking them takes a sixth of the time of vLLM's imports, and four seconds at the exit."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def namespace(configuration: Configuration) -> Namespace:
    """The parsed arguments of `vllm serve` that `configuration` stands for: everything that vLLM's
    `build_app`, `init_app_state` and `AsyncEngineArgs.from_cli_args` read, typed by vLLM's own parser.

    Raises:
        ConfigurationError: naming every argument that vLLM's parsing refuses.
    """
    from worker_vllm import vllm_arguments

    return vllm_arguments.namespace(configuration)


def prepare(args: Namespace) -> None:
    """What `vllm serve` does with its arguments before it builds an engine: logging, parser plugins, checks.

    The plugins come first, because the checks look the parsers up by name. Changes `args` as vLLM does.

    Raises:
        ConfigurationError: arguments that contradict each other, or name a parser that does not exist.
    """
    if configure_logging := load("configure_logging_from_args"):
        configure_logging(args)
    try:
        if args.tool_parser_plugin:
            load("ToolParserManager").import_tool_parser(args.tool_parser_plugin)
        if args.reasoning_parser_plugin:
            load("ReasoningParserManager").import_reasoning_parser(args.reasoning_parser_plugin)
        load("validate_parsed_serve_args")(args)
        load("validate_api_server_args")(args)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise errors.ConfigurationError([str(error.args[0] if error.args else error)]) from error


def create_engine(args: Namespace, observe: Observer, on_step: Callable[[int, Any], None]) -> Any:
    """Build the one AsyncLLM, as `vllm serve` does. Synchronous; call it before any event loop runs.

    Args:
        args: parsed and prepared arguments.
        observe: wraps the outputs of each request that the engine is given, by whichever route.
        on_step: gets (engine index, scheduler statistics) after each engine step; with statistics off, None
            in their place, and only after a step that made something.

    Raises:
        ConfigurationError: vLLM refuses the configuration.
        EngineStartError: the model's files cannot be had, or the engine does not start.
    """
    from worker_vllm import vllm_arguments, vllm_outputs, vllm_processes, vllm_queues

    threads = vllm_processes.keep_single_threaded()
    try:
        engine_args, config = vllm_arguments.check_engine_config(args)
    except (OSError, RuntimeError) as error:
        raise errors.EngineStartError(_first_line(error)) from error
    try:
        vllm_queues.wait_well()
        with vllm_processes.forked(config, threads):
            llm = _observed_engine_class(observe, _deadly(config)).from_vllm_config(
                vllm_config=config,
                usage_context=load("UsageContext").OPENAI_API_SERVER,
                # With statistics off a logger of ours would switch them on again.
                stat_loggers=None if args.disable_log_stats else [_step_logger_class(on_step)],
                enable_log_requests=engine_args.enable_log_requests,
                aggregate_engine_logging=engine_args.aggregate_engine_logging,
                disable_log_stats=engine_args.disable_log_stats,
            )
    except Exception as error:  # a file that is not what it should be can end in any of them
        raise errors.EngineStartError(_named(error)) from error
    vllm_outputs.listen(
        llm.engine_core,
        alone=partial(_has_stop_strings, llm),
        on_message=on_step if args.disable_log_stats else None,
    )
    return llm


def _deadly(config: Any) -> Mapping[str, str]:
    """Sampling parameters that would kill this engine, each with the reason."""
    if config.lora_config is None or load("current_platform").device_type != "cpu":
        return {}
    # 0.32: the adapters' part of the logits is computed for as many rows as there are requests
    # (lora/punica_wrapper/punica_cpu.py, add_lora_logits), and a prompt has more.
    return {"prompt_logprobs": "vLLM cannot compute them on a CPU where adapters are enabled (ENABLE_LORA)"}


def states_of(llm: Any, request_id: str) -> list[Any]:
    """The output processor's states of one of AsyncLLM's running requests, one per choice."""
    processor = llm.output_processor
    ids = processor.external_req_ids.get(request_id, ())
    return [processor.request_states[name] for name in ids if name in processor.request_states]


def _has_stop_strings(llm: Any, internal_id: str) -> bool:
    """Whether a running request ends at a text: 0.26 counts the tokens behind it too, where several come at
    once."""
    state = llm.output_processor.request_states.get(internal_id)
    return bool(getattr(getattr(state, "detokenizer", None), "stop", None))


def _observed_engine_class(observe: Observer, deadly: Mapping[str, str]) -> Any:
    base: Any = load("AsyncLLM")

    class ObservedAsyncLLM(base):
        """AsyncLLM whose outputs pass an observer, so that every route is counted in the same way, and that
        refuses what would kill it."""

        def generate(self, prompt: Any, sampling_params: Any, request_id: str, **options: Any) -> Any:
            for name, reason in deadly.items():
                if getattr(sampling_params, name, None) is not None:
                    raise load("VLLMValidationError")(f"{name}: {reason}", parameter=name)
            outputs = super().generate(prompt, sampling_params, request_id, **options)
            return observe(outputs, sampling_params, request_id, partial(states_of, self))

        def encode(
            self, prompt: Any, pooling_params: Any, request_id: str, *rest: Any, **options: Any
        ) -> Any:
            outputs = super().encode(prompt, pooling_params, request_id, *rest, **options)
            return observe(outputs, pooling_params, request_id)

        def __del__(self) -> None:
            """Nothing: whoever made it shuts it down. At the interpreter's exit vLLM's own way fails, with a
            traceback, because the modules that it needs are gone."""

    return ObservedAsyncLLM


def _step_logger_class(on_step: Callable[[int, Any], None]) -> Any:
    base: Any = load("StatLoggerBase")

    class StepLogger(base):
        """Passes the scheduler's statistics on; one object per engine."""

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self._engine_index = engine_index

        def record(self, scheduler_stats: Any, iteration_stats: Any, *rest: Any, **options: Any) -> None:
            if scheduler_stats is not None:
                on_step(self._engine_index, scheduler_stats)

        def log_engine_initialized(self) -> None:
            """Nothing to say: the worker prints its own settings."""

    return StepLogger


async def create_app(llm: Any, args: Namespace, tasks: Sequence[str], server: object) -> Any:
    """vLLM's own FastAPI app around `llm`, its state initialised, without bearer auth. In the job loop.

    `app.router.lifespan_context(app)` is the context to keep it in: it freezes the garbage collector's heap
    and logs statistics.

    Args:
        server: stands in for uvicorn's server; vLLM's error handlers set its `should_exit`.

    Raises:
        EngineStartError: a static adapter that cannot be loaded, or a chat template that cannot be rendered.
    """
    # Bearer auth guards an HTTP port; jobs come through RunPod, which has checked a key of its own. An empty
    # key counts as none, and VLLM_API_KEY is read only where there is no list.
    args = Namespace(**{**vars(args), "api_key": [""]})
    app = load("build_app")(args, tuple(tasks), llm.model_config)
    app.user_middleware[:] = [
        layer for layer in app.user_middleware if layer.cls.__name__ not in _FOR_AN_HTTP_PORT
    ]
    app.middleware_stack = None  # built again with the first request
    for route in app.routes:
        _be_cancelled_directly(route)
    app.state.server = server
    try:
        await load("init_app_state")(llm, app.state, args, tuple(tasks))
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        raise errors.EngineStartError(_first_line(error)) from error
    return app


def _be_cancelled_directly(route: Any) -> None:
    """Take away what lets a route's work end with its caller's connection: two tasks for each request, where
    cancelling the request does the same."""
    endpoint: Any = getattr(getattr(route, "dependant", None), "call", None)
    code = getattr(endpoint, "__code__", None)
    if code is not None and code.co_qualname == "with_cancellation.<locals>.wrapper":
        route.dependant.call = endpoint.__wrapped__


def _named(error: Exception) -> str:
    """An exception's first line, behind its type where that says more than "something failed"."""
    usual = (ValueError, RuntimeError, OSError)
    return _first_line(error) if isinstance(error, usual) else f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # pydantic's first line only counts the problems; the third says what is wrong
    if len(lines) >= 3 and "validation error" in lines[0]:
        return f"{lines[1]}: {lines[2]}"
    return lines[0] if lines else type(error).__name__
