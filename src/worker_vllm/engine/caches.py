"""Where the engine keeps what it compiles: on the network volume where there is one, so that the next cold
start finds it.

Workers on one volume share these folders. That they do each other no harm rests on the caches themselves, as
read in vLLM 0.32, torch 2.13, Triton, FlashInfer and DeepGEMM:

- vLLM's compiled graphs, its flashinfer_autotune_cache and modelinfos, and Triton's and TorchInductor's
  kernels are written to another name and renamed (vllm/compilation/decorators.py
  save_aot_compiled_function, vllm/model_executor/warmup/flashinfer_autotune_cache.py,
  triton/runtime/cache.py FileCacheManager.put, torch/_inductor/codecache.py write_atomic). vLLM's other name
  ends in the process's number, which two containers may share; a graph that this breaks fails to load, and
  is then compiled and written again (_try_load_aot_compiled_fn).
- DeepGEMM, which vLLM puts below VLLM_CACHE_ROOT, renames a whole folder and flushes it first
  (csrc/jit/compiler.hpp, Compiler::build).
- FlashInfer builds and loads under a lock file (flashinfer/jit/core.py, JitSpec.build_and_load), so it needs
  a file system with locks. What the driver does in CUDA_CACHE_PATH is not published; it gets the same
  condition.
- vLLM's index of compiled graphs is written in place (vllm/compilation/backends.py,
  CompilerManager.save_to_file). A worker that reads it in that instant does not start; its next try does.
- vLLM's peer-to-peer probe is written in place and holds for one host alone
  (gpu_p2p_access_cache_for_….json). It runs where VLLM_SKIP_P2P_CHECK is set to anything but 1
  (vllm/envs.py), and vLLM's cache stays on the container's disk then.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import tempfile
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

from worker_vllm import installed, values
from worker_vllm.configuration import machine

DEFAULT_VOLUME = "/runpod-volume"
FOLDER = "compile-cache"

VARIABLES: dict[str, str] = {
    "VLLM_CACHE_ROOT": "vllm",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
}
"""What each cache's place is called in the environment, and its folder's name. Each keys its entries by what
was compiled, with which options: the configuration is no part of the path."""

NEED_LOCKS = frozenset({"FLASHINFER_WORKSPACE_BASE", "CUDA_CACHE_PATH"})

logger = logging.getLogger(__name__)


def settle(environ: MutableMapping[str, str]) -> None:
    """Point the engine's caches to the network volume, where one is mounted and can be written, and say so
    once; without one, Triton's to where Triton has it anyway. Variables that somebody set are left alone. To
    be called before vLLM or torch is imported.

    A CPU build keeps its caches: what is compiled there is for one kind of processor, which no path tells.
    """
    if machine.detect(environ).platform == "cpu":
        return
    folder = place(environ, installed.vllm_version() or "none", machine.gpu_names())
    if folder is not None and usable(folder):
        chosen = variables(environ, folder, locks=takes_locks(folder))
        if chosen:
            environ.update(chosen)
            logger.info("compiled code is kept on the volume, in %s (%s)", folder, ", ".join(chosen))
    # Unless it is named, torch names one for the whole process as it loads a compiled graph, in the graph's
    # folder (torch/_inductor/runtime/triton_heuristics.py), which is a temporary one at a warm start. vLLM's
    # sampling kernels come after that, and are then compiled at each start: 8 to 20 s on an H200.
    if values.is_unset(environ.get("TRITON_CACHE_DIR")):
        own = Path(environ.get("TRITON_HOME") or Path.home(), ".triton", "cache")
        with contextlib.suppress(OSError):  # torch's place is the better one then
            _try_to_write(own)
            environ["TRITON_CACHE_DIR"] = str(own)


def place(
    environ: Mapping[str, str],
    vllm_version: str,
    gpus: tuple[str, ...],
    is_mount: Callable[[Path], bool] | None = None,
) -> Path | None:
    """The folder for code compiled by one vLLM for one kind of GPU; None where no volume is mounted.

    Args:
        gpus: the names of the GPUs, as their driver gives them.
        is_mount: tells a mount point; the operating system's own if None.
    """
    text = environ.get("BASE_PATH")
    volume = Path(DEFAULT_VOLUME if text is None or values.is_unset(text) else text.strip())
    if not gpus or not (is_mount or os.path.ismount)(volume):
        return None
    kinds = "+".join(sorted({re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") for name in gpus}))
    return volume / FOLDER / f"vllm-{vllm_version}" / kinds


def variables(environ: Mapping[str, str], folder: Path, *, locks: bool) -> dict[str, str]:
    """The variables that put the caches into `folder`, but for those that `environ` sets.

    Args:
        locks: whether files in `folder` can be locked.
    """
    return {
        name: str(folder / part)
        for name, part in VARIABLES.items()
        if values.is_unset(environ.get(name))
        and (locks or name not in NEED_LOCKS)
        and not (name == "VLLM_CACHE_ROOT" and environ.get("VLLM_SKIP_P2P_CHECK", "1") != "1")
    }


def usable(folder: Path) -> bool:
    """Make `folder` and see whether files can be written there; RunPod's model cache may be mounted for
    reading alone."""
    try:
        _try_to_write(folder)
        return True
    except OSError as error:
        logger.info(
            "compiled code is kept in the container: %s cannot be written (%s)", folder, error.strerror
        )
        return False


def _try_to_write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def takes_locks(folder: Path) -> bool:
    """Whether the file system of `folder` locks files, as some network file systems do not."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
