"""The words: every link of every page leads somewhere, and every command a page shows is one that there is."""

import re
import subprocess
from pathlib import Path

import pytest

from pipeline.cli.parsing import COMMANDS
from tests.conftest import REPOSITORY

LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
BROWSED = ("http://", "https://")


def pages() -> list[Path]:
    """List the Markdown pages of the tree, by git where there is one."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.split() if listed.returncode == 0 else [str(path) for path in REPOSITORY.glob("*.md")]
    return [REPOSITORY / name for name in names]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if not target.startswith(BROWSED)]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_commands_in_the_readme_exist() -> None:
    shown = set(re.findall(r"^fianchetto (\w+)", (REPOSITORY / "README.md").read_text(), re.MULTILINE))
    assert shown, "the README shows how to use the program"
    assert shown <= set(COMMANDS)


def test_make_targets_in_the_readme_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    shown = set(re.findall(r"`?make (\w[\w-]*)", (REPOSITORY / "README.md").read_text()))
    assert {"run", "test", "ui"} <= shown
    missing = [target for target in shown if f"\n{target}:" not in makefile]
    assert not missing
