"""Which code a dataset's rows are of: the hash of the modules that decide rows, as it stands in the manifest.

They are what the encoding of a chunk and the making of shards import, found by reading their sources, without the modules
that only bring bytes here and put files there. Comments, docstrings and blank lines do not count. The hash is the same of a
checkout and of an installed wheel, on every machine and with every version of Python.
"""

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOTS = ("pipeline.ingest.chunk", "pipeline.ingest.scatter")
"""What workers do."""
CARRIERS = frozenset(
    {"engine.errors", "engine.jit_cache", "engine.temporaries"}
    | {
        "pipeline.errors",
        "pipeline.storage.objects",
        "pipeline.ingest.rows_code",
        "pipeline.storage.stores",
        "pipeline.storage.http",
        "pipeline.storage.building",
    }
)
"""Modules that no row depends on; what they import is not followed."""


@cache
def rows_code() -> str:
    """Return the hash of the code that decides rows in this process, 16 hex digits."""
    return code_of(Path(__file__).resolve().parents[2])


def code_of(root: Path) -> str:
    """Return the hash of the code that decides rows, 16 hex digits; `root` is the folder of the packages."""
    total = hashlib.sha256()
    for name, path in sorted(modules(root).items()):
        total.update(f"{name}\n{without_comments(path.read_bytes())}\n".encode())
    return total.hexdigest()[:16]


def modules(root: Path) -> dict[str, Path]:
    """Return the modules that decide rows, by name: what ROOTS import, directly or not, but for CARRIERS."""
    found: dict[str, Path] = {}
    waiting = list(ROOTS)
    while waiting:
        name = waiting.pop()
        if name in found or name in CARRIERS or (path := _path_of(root, name)) is None:
            continue
        found[name] = path
        waiting += [*_imported(ast.parse(path.read_bytes())), name.rpartition(".")[0]]  # its package is imported first
    return found


def _path_of(root: Path, name: str) -> Path | None:
    """Return the source of a module of ours, None for anything else: a package of others, a name inside a module."""
    if name.partition(".")[0] not in ("engine", "pipeline"):
        return None
    path = root.joinpath(*name.split("."))
    places = (path.with_suffix(".py"), path / "__init__.py")
    return next((place for place in places if place.is_file()), None)


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield every name that a module imports, wherever in it; `from a import b` may mean the module a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def without_comments(source: bytes) -> str:
    """Return a module's text without comments, bare strings (docstrings among them), blank lines and line ends' blanks."""
    lines = source.decode().splitlines()
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        ):
            continue
        if not lines[node.lineno - 1][: node.col_offset].strip():  # nothing else stands in its lines
            for row in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[row - 1] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())
