"""`python -m tests.notebook`: run docs/first_steps.ipynb, and store the outputs of its cells in it.

Cells are executed as in Jupyter, but without its packages, in a temporary folder.
"""

import ast
import contextlib
import io
import json
import pprint
import tempfile
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY

NOTEBOOK = REPOSITORY / "docs" / "first_steps.ipynb"


def run_cells(
    cells: list[dict[str, Any]], folder: Path
) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """Execute cells in a folder; return their variables and the outputs of each code cell."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    with contextlib.chdir(folder):
        for cell in cells:
            if cell["cell_type"] == "code":
                outputs.append(execute("".join(cell["source"]), variables))
    return variables, outputs


def execute(code: str, variables: dict[str, Any]) -> list[dict[str, Any]]:
    """Execute a cell and return its outputs, as a notebook stores them."""
    body = ast.parse(code).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "<cell>", "exec"), variables)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), variables)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(True)}
        )
    if value is not None:
        svg = value._repr_svg_() if hasattr(value, "_repr_svg_") else None
        data = (
            {"image/svg+xml": [svg]}
            if svg
            else {"text/plain": pprint.pformat(value, width=100, sort_dicts=False).splitlines(True)}
        )
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    return outputs


def main() -> None:
    """Run the notebook and store its outputs."""
    notebook = json.loads(NOTEBOOK.read_text())
    with tempfile.TemporaryDirectory() as folder:
        _, outputs = run_cells(notebook["cells"], Path(folder))
    code_cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, stored) in enumerate(zip(code_cells, outputs, strict=True), 1):
        cell |= {"execution_count": number, "outputs": stored}
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
