"""The house's rules as tests: which room may import which, what importing costs, how large things may be.

Imports are read from the source, those inside functions included; blocks for type checkers alone do not
count.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = SOURCE / "worker_vllm"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Room to its modules; a package is a room. A room may import itself.
ROOMS = {
    "leaves": (
        "env_names",
        "errors",
        "phases",
        "sse",
        "batching",
        "wire",
        "values",
        "vllm_homes",
        "addresses",
        "children",
        "installed",
        "scratch",
    ),
    "media": ("media",),
    "asgi": ("asgi", "exchange"),
    "job": (
        "job",
        "job_shape",
        "job_fields",
        "job_values",
        "body_limits",
        "constraint_ways",
        "grammar_rules",
        "grammar_ways",
        "prompts",
        "regex_ways",
        "route_body",
        "routes",
        "sampling",
        "structured",
    ),
    "settings": ("settings",),
    "configuration": ("configuration",),
    "models": ("models",),
    "doctor": ("doctor",),
    "forms": ("forms",),
    "vllm": (
        "vllm_compat",
        "vllm_errors",
        "vllm_arguments",
        "vllm_table",
        "vllm_processes",
        "vllm_queues",
        "vllm_outputs",
        "vllm_media",
        "vllm_architectures",
    ),
    "engine": ("engine",),
    "serverless": ("serverless",),
    "emulator": ("emulator",),
    "bench": ("bench",),
    "cli": ("cli", "__main__"),
}

# What each room may import, apart from itself. Arrows go down only; the two that look up say why.
MAY_IMPORT = {
    "leaves": set(),
    "media": {"leaves"},
    "asgi": {"leaves"},
    "job": {"leaves"},
    "settings": {"leaves"},
    # the table of vLLM's arguments is read where none is given, inside `resolve`
    "configuration": {"leaves", "settings", "vllm"},
    "models": {"leaves", "configuration", "vllm"},
    "doctor": {"leaves", "settings", "configuration", "models"},
    "forms": {"leaves", "settings", "configuration"},
    # `ArgumentTable` is the shape in which vLLM's parser is written down
    "vllm": {"leaves", "media", "configuration"},
    "engine": {"leaves", "asgi", "media", "job", "settings", "configuration", "vllm"},
    "serverless": {"leaves", "job", "settings", "engine", "models", "doctor"},
    "emulator": set(),
    # the target "raw" is AsyncLLM itself
    "bench": {"vllm"},
    "cli": {
        "leaves",
        "settings",
        "configuration",
        "models",
        "doctor",
        "forms",
        "vllm",
        "serverless",
        "emulator",
        "bench",
    },
}

# Third parties and where they may be named; pydantic may stand everywhere. vLLM, torch and transformers stand
# nowhere in an import: `vllm_homes` holds their addresses as data, and `vllm_compat` loads them.
THIRD_PARTIES = {
    "aiohttp": ("emulator", "bench", "serverless.delivery", "media"),
    "yarl": ("media",),
    "huggingface_hub": ("models.hub", "models.hub_errors", "models.download", "models.resume"),
    "openai": ("cli.demo",),
    "psutil": ("bench",),
    "runpod": ("serverless.sdk", "cli.demo"),
    "starlette": ("engine.routes",),
    "jinja2": ("vllm_errors", "models.chat_template"),
    "uvloop": ("bench", "cli.local", "serverless.start"),
    "yaml": ("configuration.config_file",),
    "cpuinfo": ("serverless.sdk",),
}

HEAVY = {"vllm", "torch", "transformers", "runpod", "fastapi", "starlette", "huggingface_hub", "openai"}

READ_THE_ENVIRONMENT = {
    "cli": "the command hands it on as a mapping",
    "cli.demo": "a script of its own, in a process of its own",
    "cli.local_session": "a worker's environment is this one's and more",
    "vllm_processes": "vLLM and OpenMP are told there how to start a process",
}

CATCH_EVERYTHING = {
    "cli": "the process's edge",
    "asgi": "an app's task: its failure is handed to the reader",
    "vllm_compat": "vLLM's start: whatever it raises is a failed start",
    "serverless.handler": "the job's edge",
    "serverless.cancellation": "a stream that nobody waits for any more",
    "vllm_outputs": "the engine's failure is handed on after what came before it",
    "vllm_media": "libraries that decode media raise what they like",
    "serverless.intake": "a poll that fails must not end intake",
    "engine.rendering": "handed to who asked, as an executor does",
}

MAX_MODULE_LINES = 299
MAX_FUNCTION_LINES = 60
DATA_MODULES = {"env_names", "job_fields", "forms.catalog", "forms.presets", "vllm_homes"}


def name_of(path: Path) -> str:
    """A module's name inside the package: "serverless.start", "cli", "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    return next(room for room, members in ROOMS.items() if module.split(".")[0] in members)


def belongs(module: str, places: tuple[str, ...] | set[str] | dict[str, str]) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: what stands under `if TYPE_CHECKING` does not."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield from (other, *walk(other))
            continue
        yield child
        yield from walk(child)


def imports_of(path: Path) -> set[str]:
    """Full names of what a module imports, by statement or by a literal given to `import_module`."""
    package = ("worker_vllm", *path.relative_to(PACKAGE).parent.parts)
    found: set[str] = set()
    for node in walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            found |= {submodule(module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            argument = node.args[0]
            if isinstance(argument, ast.Constant):
                found.add(argument.value)
    return found


def submodule(module: str, name: str) -> str:
    """`module.name` where that is a module of ours, `module` otherwise."""
    path = SOURCE.joinpath(*module.split("."), name)
    return f"{module}.{name}" if path.is_dir() or path.with_suffix(".py").exists() else module


def ours(path: Path) -> set[str]:
    names = {name for name in imports_of(path) if name.split(".")[0] == "worker_vllm"}
    return {name.removeprefix("worker_vllm").removeprefix(".") for name in names} - {""}


def by_module(found: dict[str, object]) -> dict[str, object]:
    """The modules where something was found."""
    return {module: what for module, what in found.items() if what}


def test_imports_go_down() -> None:
    found: dict[str, object] = {}
    for path in MODULES:
        if module := name_of(path):
            allowed = MAY_IMPORT[room_of(module)] | {room_of(module)}
            found[module] = {name for name in ours(path) if room_of(name) not in allowed}
        else:
            found["worker_vllm"] = ours(path)
    assert by_module(found) == {}


def test_third_parties_stand_where_they_belong() -> None:
    found: dict[str, object] = {}
    for path in MODULES:
        roots = {name.split(".")[0] for name in imports_of(path)} - {"worker_vllm", "pydantic"}
        foreign = roots - sys.stdlib_module_names
        module = name_of(path)
        found[module] = {name for name in foreign if not belongs(module, THIRD_PARTIES.get(name, ()))}
    assert by_module(found) == {}


def test_vllm_is_loaded_by_one_module() -> None:
    """No other imports a module whose name it puts together; the command does, for its verbs."""
    computed = re.compile(r"import_module\([^\"')]")
    assert {name_of(path) for path in MODULES if computed.search(path.read_text())} == {"cli", "vllm_compat"}


def test_importing_all_of_it_loads_nothing_heavy() -> None:
    names = sorted(f"worker_vllm.{name_of(path)}".rstrip(".") for path in MODULES)
    names.remove("worker_vllm.__main__")
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=SOURCE, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


def test_the_environment_is_read_in_the_command_alone() -> None:
    users = {
        name_of(path) for path in MODULES if re.search(r"\bos\.(environ|getenv|putenv)\b", path.read_text())
    }
    assert users == set(READ_THE_ENVIRONMENT)


def test_everything_is_caught_at_the_edges_alone() -> None:
    def catches_everything(node: ast.AST) -> bool:
        return isinstance(node, ast.ExceptHandler) and (
            node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
        )

    def reraises(node: ast.AST) -> bool:
        return any(isinstance(inner, ast.Raise) for inner in ast.walk(node))

    catchers = {
        name_of(path)
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if catches_everything(node)
        and not (ast.unparse(node.type or node) == "BaseException" and reraises(node))  # type: ignore[attr-defined]
    }
    assert catchers == set(CATCH_EVERYTHING)


def test_a_module_is_small_enough_to_read() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in MODULES}
    long = {name: lines for name, lines in lengths.items() if lines > MAX_MODULE_LINES}
    assert long.keys() <= DATA_MODULES


def test_a_function_fits_a_screen() -> None:
    found: dict[str, object] = {}
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                lines = node.end_lineno - node.lineno + 1
                found[f"{name_of(path)}.{node.name}"] = lines if lines > MAX_FUNCTION_LINES else 0
    assert by_module(found) == {}


def test_public_names_have_docstrings() -> None:
    found: dict[str, object] = {}
    for path in MODULES:
        bare = [] if ast.get_docstring(tree_of(path)) or not path.read_text().strip() else ["the module"]
        for node in tree_of(path).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                bare += list(without_docstring(node, ""))
        found[name_of(path)] = bare
    assert by_module(found) == {}


def without_docstring(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, prefix: str
) -> Iterator[str]:
    """Public names at `node` that say nothing about themselves. Methods that a base class documents (an
    override, or a field of a protocol whose class says it all) are not asked."""
    if node.name.startswith("_"):
        return
    if not ast.get_docstring(node):
        yield prefix + node.name
    if isinstance(node, ast.ClassDef) and not node.bases:
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from without_docstring(inner, f"{prefix}{node.name}.")


def test_nothing_is_left_to_do() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert [name_of(path) for path in MODULES if marks.search(path.read_text())] == []


def test_a_file_is_named_for_what_is_in_it() -> None:
    vague = {"utils", "util", "common", "helpers", "constants", "misc", "base", "types"}
    assert {path.stem for path in MODULES} & vague == set()


def test_every_room_is_on_the_map() -> None:
    tops = {name_of(path).split(".")[0] for path in MODULES} - {""}
    assert tops == {member for members in ROOMS.values() for member in members}
