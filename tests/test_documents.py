"""Markdown files: links have targets, commands can be parsed, pictures are used."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from engine.errors import UserError
from pipeline.cli.main import COMMANDS, Command, parse
from tests.conftest import REPOSITORY
from tests.pictures import IMAGES, MAX_PICTURE_BYTES

LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")
WEB_PREFIXES = ("http://", "https://")
CODE_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE_COMMAND = re.compile(r"`(fianchetto [^`]+)`")
OPTIONS_IN_CODE = re.compile(r"`(--[^`]+)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
OTHER_OPTIONS = {"--help", "--nnodes", "--rdzv-endpoint"}
"""Options that are known, but that no command declares: click's and torchrun's."""


def list_documents() -> list[Path]:
    """Return all Markdown files, according to git if this is a repository."""
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


DOCUMENTS = list_documents()
each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda document: document.relative_to(REPOSITORY).as_posix()
)


def list_anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def find_commands(text: str, pattern: re.Pattern[str]) -> list[list[str]]:
    """Return the words of a document's commands, in blocks or inline, except those with `...`."""
    if pattern is CODE_BLOCK:
        blocks = (block.replace("\\\n", " ") for block in CODE_BLOCK.findall(text))
        lines = [line for block in blocks for line in block.splitlines()]
    else:
        lines = pattern.findall(" ".join(text.split()).replace("\\|", "|"))
    lines = [line.partition("|")[0] for line in lines if line.startswith("fianchetto ")]
    split = [shlex.split(line, comments=True)[1:] for line in lines]
    return [words for words in split if "..." not in words]


@each_document
def test_links_have_targets(document: Path) -> None:
    links = [
        link for link in LINK.findall(document.read_text()) if not link[0].startswith(WEB_PREFIXES)
    ]
    for target, anchor in links:
        path = document.parent / target if target else document
        assert path.exists(), target
        assert not anchor or anchor in list_anchors(path.read_text()), (target, anchor)


@each_document
def test_commands_and_options_exist(document: Path) -> None:
    if document.parent.name == "log":
        pytest.skip("log entries keep the commands of their time")
    text = document.read_text()
    mentioned = find_commands(text, INLINE_COMMAND)
    assert {words[0] for words in mentioned if not words[0].startswith("-")} <= set(COMMANDS)
    for words in find_commands(text, CODE_BLOCK) + mentioned * (document.name == "benchmarks.md"):
        try:
            parse(words)
        except UserError as error:
            pytest.fail(f"fianchetto {shlex.join(words)}: {error}")
    known = [{flag for option in Command(name).params for flag in option.opts} for name in COMMANDS]
    for code in OPTIONS_IN_CODE.findall(text):
        options = set(OPTION.findall(code)) - OTHER_OPTIONS
        assert any(options <= flags for flags in known), "no command has all these options"


@each_document
def test_make_targets_exist(document: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = re.findall(r"(?:`|^)make (\w[\w-]*)", document.read_text(), re.MULTILINE)
    assert not [target for target in targets if f"\n{target}:" not in makefile]


def test_the_readme_is_short_and_has_a_command_for_each_step() -> None:
    text = (REPOSITORY / "README.md").read_text()
    assert len(text.splitlines()) <= 110
    steps = {"fetch", "ingest", "train", "report", "finetune", "arena"}
    assert {words[0] for words in find_commands(text, CODE_BLOCK)} >= steps


def test_every_picture_is_linked_and_small() -> None:
    linked = {
        (document.parent / target).resolve()
        for document in DOCUMENTS
        for target, _ in LINK.findall(document.read_text())
    }
    pictures = list(IMAGES.glob("*"))
    assert pictures
    assert not [path.name for path in pictures if path.resolve() not in linked]
    assert not [path.name for path in pictures if path.stat().st_size > MAX_PICTURE_BYTES]
