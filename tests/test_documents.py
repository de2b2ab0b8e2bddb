"""The documents: links lead somewhere, commands can be parsed, pictures are shown, the README and
the log keep their form."""

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
    """List the Markdown files of the tree, by git where there is one."""
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
    """Names of a document's headings in links, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str, pattern: re.Pattern[str]) -> list[list[str]]:
    """Split the commands that a document shows whole, without `...`: in blocks of shell, or in
    inline code."""
    if pattern is FENCED:
        lines = [
            line
            for block in FENCED.findall(text)
            for line in block.replace("\\\n", " ").splitlines()
        ]
    else:
        lines = pattern.findall(" ".join(text.split()).replace("\\|", "|"))
    split = (
        shlex.split(line.partition("|")[0], comments=True)
        for line in lines
        if line.startswith("fianchetto ")
    )
    return [words[1:] for words in split if "..." not in words]


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    links = [link for link in LINK.findall(document.read_text()) if not link[0].startswith(BROWSED)]
    missing = [target for target, _ in links if not (document.parent / target).exists()]
    assert not missing
    linked = [
        ((document.parent / target) if target else document, anchor)
        for target, anchor in links
        if anchor
    ]
    assert not [
        (path.name, anchor) for path, anchor in linked if anchor not in anchors(path.read_text())
    ]


@each_document
def test_commands_can_be_parsed(document: Path) -> None:
    if document.parent.name == "log":
        pytest.skip("the commands of log entries are of their day")
    text = document.read_text()
    mentioned = commands(text, INLINE)
    assert not [
        words for words in mentioned if words[0] not in COMMANDS and not words[0].startswith("-")
    ]
    whole = commands(text, FENCED) + (mentioned if document.name == "benchmarks.md" else [])
    for verb, *rest in whole:
        try:
            parse([verb, *rest])
        except UserError as error:
            pytest.fail(f"fianchetto {verb} {shlex.join(rest)}: {error}")


@each_document
def test_options_in_inline_code_are_options_of_one_command(document: Path) -> None:
    if document.parent.name == "log":
        pytest.skip("the commands of log entries are of their day")
    known = [{flag for option in Command(name).params for flag in option.opts} for name in COMMANDS]
    mentioned = [
        set(OPTION.findall(code)) - OF_OTHERS for code in OPTIONS.findall(document.read_text())
    ]
    assert not [options for options in mentioned if not any(options <= flags for flags in known)]


def test_the_readme_is_short_and_shows_how_to_begin() -> None:
    text = (REPOSITORY / "README.md").read_text()
    assert len(text.splitlines()) <= 110
    assert {words[0] for words in commands(text, FENCED)} >= {
        "fetch",
        "ingest",
        "train",
        "report",
        "finetune",
        "arena",
    }


@each_document
def test_make_targets_exist(document: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    text = document.read_text()
    shown = set(re.findall(r"`make (\w[\w-]*)|^make (\w[\w-]*)", text, re.MULTILINE))
    missing = [
        target for pair in shown for target in pair if target and f"\n{target}:" not in makefile
    ]
    assert not missing
    if document == REPOSITORY / "README.md":
        assert {"run", "test"} <= {target for pair in shown for target in pair}


def test_every_picture_is_shown_somewhere_and_small() -> None:
    shown = {
        (document.parent / target).resolve()
        for document in DOCUMENTS
        for target, _ in LINK.findall(document.read_text())
    }
    kept = list(IMAGES.glob("*"))
    assert kept
    assert not [path.name for path in kept if path.resolve() not in shown]
    assert not [path.name for path in kept if path.stat().st_size > MOST_BYTES]


def test_each_experiment_of_the_log_asks_and_answers() -> None:
    days = sorted((REPOSITORY / "docs" / "log").glob("20*.md"))
    entries = [
        entry
        for day in days
        for entry in re.split(r"^### ", day.read_text(), flags=re.MULTILINE)[1:]
    ]
    assert len(entries) > 40
    asked = [(entry.splitlines()[0], " ".join(entry.split("\n\n")[1].split())) for entry in entries]
    assert not [
        heading
        for heading, first in asked
        if not re.match(r"[^*]*\?\s+(\([^)]*\)\s+)?\*\*.+\*\*", first)
    ]
