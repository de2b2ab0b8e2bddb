"""Modules and packages have no import cycles; heavy libraries are imported only where needed."""

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

from tests.conftest import REPOSITORY

GRAPH = grimp.build_graph("engine", "model", "pipeline")


def test_no_modules_import_each_other() -> None:
    imports = {name: GRAPH.find_modules_directly_imported_by(name) for name in GRAPH.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError
    with pytest.raises(CycleError):
        TopologicalSorter(imports | {"engine.errors": {"pipeline.cli.main"}}).prepare()


def test_no_packages_import_each_other() -> None:
    for parent in GRAPH.modules:
        below = {
            child: {child, *GRAPH.find_descendants(child)} for child in GRAPH.find_children(parent)
        }
        imports = {
            child: {
                other
                for other, inside in below.items()
                for module in modules
                if other != child and GRAPH.find_modules_directly_imported_by(module) & inside
            }
            for child, modules in below.items()
        }
        TopologicalSorter(imports).prepare()


LIGHT_IMPORTS = """
import sys, fianchetto, pipeline.cli.main

def require_absent(*names):
    assert not set(names) & set(sys.modules), set(names) & set(sys.modules)

try:
    pipeline.cli.main.parse(["--help"])
except SystemExit:
    require_absent("numpy", "numba", "torch", "pyarrow", "dagster")
from pipeline.definitions import defs
import pipeline.defs.first_network
defs()
require_absent("torch", "matplotlib", "polars")
import pipeline.ingest.job
from pipeline.executors.by_name import make_engine
make_engine("local")
require_absent("ray", "torch")
"""


def test_heavy_libraries_are_not_imported_without_need() -> None:
    """Check `import fianchetto`, `fianchetto --help`, Dagster's code server and a local ingest."""
    command = [sys.executable, "-c", LIGHT_IMPORTS]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
