"""No module, and no package, is imported by what it imports itself: neither at the top, nor in a
function, nor for types."""

from collections.abc import Iterable, Mapping

import grimp
import pytest

ROOTS = ("engine", "model", "pipeline")


def circles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """List the sets of names that reach each other (Tarjan 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in imports[name]:
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            circle = stack[stack.index(name) :]
            del stack[-len(circle) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for name in imports:
        if name not in number:
            visit(name)
    return found


def test_a_circle_is_found() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": []}) == [["b", "c"]]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*ROOTS)


def test_no_modules_import_each_other(graph: grimp.ImportGraph) -> None:
    assert (
        circles(
            {
                name: sorted(graph.find_modules_directly_imported_by(name))
                for name in sorted(graph.modules)
            }
        )
        == []
    )


def test_no_packages_import_each_other(graph: grimp.ImportGraph) -> None:
    for parent in sorted(graph.modules):
        children = sorted(graph.find_children(parent))
        below = {name: {name, *graph.find_descendants(name)} for name in children}
        imports = {
            name: [
                other
                for other in children
                if other != name
                and any(
                    graph.find_modules_directly_imported_by(one) & below[other]
                    for one in below[name]
                )
            ]
            for name in children
        }
        assert circles(imports) == [], parent
