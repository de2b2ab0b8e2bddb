"""No module, and no package, is imported by what it imports itself: neither at the top, nor in a
function, nor for types."""

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

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
