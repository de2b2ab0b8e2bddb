"""Documents: links have targets, commands can be parsed, pictures are used."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from engine.errors import UserError
from pipeline.cli.main import COMMANDS, Command, parse
from tests.conftest import REPOSITORY
from tests.pictures import IMAGES, MOST_BYTES

LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")
BROWSED = ("http://", "https://")
FENCED = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(fianchetto [^`]+)`")
OPTIONS = re.compile(r"`(--[^`]+)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
OF_OTHERS = {"--help", "--nnodes", "--rdzv-endpoint"}
"""Options that click adds to every command, and torchrun's."""


def documents() -> list[Path]:
    """Return the Markdown files, listed by git if there is a repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    names = (
        listed.stdout.split()
        if listed.returncode == 0
        else [str(path) for path in REPOSITORY.glob("*.md")]
    )
    return [REPOSITORY / name for name in names if (REPOSITORY / name).exists()]


DOCUMENTS = documents()
each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda document: document.relative_to(REPOSITORY).as_posix()
)


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str, pattern: re.Pattern[str]) -> list[list[str]]:
    """Return the words of a document's complete commands (without `...`), in blocks or inline."""
    if pattern is FENCED:
        blocks = (block.replace("\\\n", " ") for block in FENCED.findall(text))
        lines = [line for block in blocks for line in block.splitlines()]
    else:
        lines = pattern.findall(" ".join(text.split()).replace("\\|", "|"))
    shown = (line.partition("|")[0] for line in lines if line.startswith("fianchetto "))
    split = [shlex.split(line, comments=True)[1:] for line in shown]
    return [words for words in split if "..." not in words]


@each_document
def test_links_have_targets(document: Path) -> None:
    links = [link for link in LINK.findall(document.read_text()) if not link[0].startswith(BROWSED)]
    for target, anchor in links:
        path = document.parent / target if target else document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text()), (target, anchor)


@each_document
def test_commands_and_options_exist(document: Path) -> None:
    if document.parent.name == "log":
        pytest.skip("log entries keep the commands of their day")
    text = document.read_text()
    mentioned = commands(text, INLINE)
    verbs = {words[0] for words in mentioned if not words[0].startswith("-")}
    assert verbs <= set(COMMANDS)
    for verb, *rest in commands(text, FENCED) + mentioned * (document.name == "benchmarks.md"):
        try:
            parse([verb, *rest])
        except UserError as error:
            pytest.fail(f"fianchetto {verb} {shlex.join(rest)}: {error}")
    known = [{flag for option in Command(name).params for flag in option.opts} for name in COMMANDS]
    for code in OPTIONS.findall(text):
        options = set(OPTION.findall(code)) - OF_OTHERS
        assert any(options <= flags for flags in known), "options of one command"


@each_document
def test_make_targets_exist(document: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    shown = re.findall(r"(?:`|^)make (\w[\w-]*)", document.read_text(), re.MULTILINE)
    assert not [target for target in shown if f"\n{target}:" not in makefile]


def test_the_readme_is_short_and_shows_every_step() -> None:
    text = (REPOSITORY / "README.md").read_text()
    assert len(text.splitlines()) <= 110
    steps = {"fetch", "ingest", "train", "report", "finetune", "arena"}
    assert {words[0] for words in commands(text, FENCED)} >= steps


def test_every_picture_is_used_and_small() -> None:
    shown = {
        (document.parent / target).resolve()
        for document in DOCUMENTS
        for target, _ in LINK.findall(document.read_text())
    }
    kept = list(IMAGES.glob("*"))
    assert kept
    assert not [path.name for path in kept if path.resolve() not in shown]
    assert not [path.name for path in kept if path.stat().st_size > MOST_BYTES]
