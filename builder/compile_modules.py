"""`python compile_modules.py PACKAGE…`: compile the modules of installed packages, and of all that lies
beside them, to bytecode. A step of the image's build; the standard library alone.

Packages carry files that are no Python (templates, say) or Python of another version: that these do not
compile is no failure. That nothing of a package is compiled is one.
"""

from __future__ import annotations

import compileall
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main(packages: Sequence[str]) -> int:
    """Compile, say how much there is now, and return the exit code: 1 where a package is not compiled."""
    origins = {package: origin(package) for package in packages}
    folders = sorted({path.parents[1] for path in origins.values() if path})
    for folder in folders:
        compileall.compile_dir(folder, quiet=2, workers=os.cpu_count() or 1)
    missing = [package for package, path in origins.items() if not path or not is_compiled(path)]
    if missing:
        print(f"not compiled: {', '.join(missing)}", file=sys.stderr)
        return 1
    for folder in folders:
        files = list(folder.rglob("*.pyc"))
        size = sum(file.stat().st_size for file in files)
        print(f"{folder}: {len(files)} compiled modules, {size / 1e6:.0f} MB")
    return 0


def origin(package: str) -> Path | None:
    """The package's `__init__.py`, found without importing it."""
    found = importlib.util.find_spec(package)
    return Path(found.origin) if found and found.origin else None


def is_compiled(source: Path) -> bool:
    """Whether the bytecode of `source` is there."""
    return Path(importlib.util.cache_from_source(source)).exists()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
