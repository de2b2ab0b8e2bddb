"""Whose a folder is: only empty folders, and those of the kind that is to be written, are let
through."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import UserError
from pipeline.samples.shipped import SAMPLE
from pipeline.storage.ownership import CHECKPOINT, DATASET, REPORT, require_apart, require_own
from pipeline.storage.stores import place
from tests.conftest import REPOSITORY
from tests.pipeline import datasets


class NoError(UserError):
    """What these tests are refused with."""


@pytest.mark.parametrize(
    "names", [(), (".DS_Store",), ("lost+found/", ".lock"), ("checkpoint.json", "notes.txt")]
)
def test_empty_folders_and_own_ones_are_let_through(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    require_own(tmp_path, CHECKPOINT, NoError)
    require_own(tmp_path / "new" / "deep", CHECKPOINT, NoError)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            {"notes.txt": ""},
            r"holds 'notes.txt', which is not of a checkpoint: choose an empty or new directory",
        ),
        ({".hidden": ""}, "holds '.hidden'"),
        ({"sub/file": ""}, "holds 'sub'"),
        ({".lock": "somebody's words"}, "holds '.lock'"),
        ({".x.123.tmp": ""}, "holds '.x.123.tmp'"),
        ({".building/mine": ""}, "holds '.building'"),
        (
            {"manifest.json": "{}", "train-00000-0.parquet": ""},
            "holds 'manifest.json', a dataset, which is not of",
        ),
        ({"explore.json": "{}", "manifest.json": "{}"}, "a generation of self-play, which"),
    ],
)
def test_what_is_another_s_is_named(files: dict[str, str], says: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(NoError, match=says):
        require_own(tmp_path, CHECKPOINT, NoError)
    assert {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    } == files.keys()


def test_a_mark_that_is_another_s_file_is_none(tmp_path: Path) -> None:
    for text in ("[]", "{}", "no JSON"):
        (tmp_path / "report.json").write_text(text)
        with pytest.raises(NoError, match=r"holds 'report.json'"):
            require_own(tmp_path, REPORT, NoError)
    (tmp_path / "report.json").write_text('{"common_rule": {}}')
    require_own(tmp_path, REPORT, NoError)


def test_links_and_files_are_no_folders(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "there").symlink_to(tmp_path / "full")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    for name, says in (
        ("there", "holds 'x'"),
        ("gone", "a link to nothing"),
        ("full/x", "it is a file"),
    ):
        with pytest.raises(NoError, match=says):
            require_own(tmp_path / name, DATASET, NoError)


def test_a_store_is_asked_as_a_folder_is() -> None:
    folder = place("memory://claims/out")
    require_own(folder, DATASET, NoError)
    (folder / "theirs.parquet").write_bytes(b"x")
    with pytest.raises(NoError, match=r"holds 'theirs.parquet'"):
        require_own(folder, DATASET, NoError)
    (folder / ".building" / "run.json").write_bytes(b"{}")
    require_own(folder, DATASET, NoError)


def test_nothing_is_written_into_what_is_read(tmp_path: Path) -> None:
    read = tmp_path / "positions"
    read.mkdir()
    (tmp_path / "link").symlink_to(read)
    require_apart(tmp_path / "positions-2", [read, tmp_path / "elsewhere"], NoError)
    for out in (read, read / "sub", tmp_path / "link", tmp_path / "x" / ".." / "positions"):
        with pytest.raises(NoError, match=r"is, or lies in, .*positions, which is read from"):
            require_apart(out, [read], NoError)
    with pytest.raises(NoError, match="is read from"):
        require_apart(place("memory://a/b"), [place("memory://a/b/")], NoError)


def commands() -> dict[str, Callable[[Path, Path], object]]:
    """Give what fills folders, each called with its folder and a dataset's; all of it is refused
    before anything is done."""
    from pipeline.dataset.join import join
    from pipeline.evaluation.render import write_report
    from pipeline.finetune.config import FinetuneConfig
    from pipeline.finetune.loop import finetune
    from pipeline.ingest.job import ingest
    from pipeline.matches.arena import play_matches
    from pipeline.matches.config import ArenaConfig, SideConfig
    from pipeline.matches.match import play_match
    from pipeline.selfplay.config import ExploreConfig
    from pipeline.selfplay.job import explore
    from pipeline.validation.render import write_audit

    side, match, games = (
        SideConfig(who="uniform"),
        ArenaConfig(games=2),
        ExploreConfig(explorer="hand-written"),
    )
    embedded = REPOSITORY / "datasets" / "embedded"
    return {
        "ingest": lambda out, read: ingest([str(SAMPLE)], out),
        "selfplay": lambda out, read: explore(
            None, ExploreConfig(games=1, explorer="hand-written"), out
        ),
        "finetune": lambda out, read: finetune(
            embedded, FinetuneConfig(generations=1, games_share=1.0, explore=games), out
        ),
        "match": lambda out, read: play_match(side, side, match, out),
        "matches": lambda out, read: play_matches([(side, side)], match, out),
        "join": lambda out, read: join([read], out),
        "report": lambda out, read: write_report({}, out),
        "audit": lambda out, read: write_audit({}, out),
    }


NAMES = ("ingest", "selfplay", "finetune", "match", "matches", "join", "report", "audit")


@pytest.fixture(scope="module")
def positions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a small dataset."""
    from pipeline.ingest.job import ingest

    folder = tmp_path_factory.mktemp("claims")
    ingest([str(datasets.dump(folder / "games.pgn", 12))], folder / "positions", workers=1)
    return folder / "positions"


@pytest.mark.parametrize("name", NAMES)
def test_no_command_writes_into_a_folder_of_others(
    name: str, positions: Path, tmp_path: Path
) -> None:
    theirs = dict.fromkeys(
        ("games.pgn", "report.txt", "table.md", "train-00000-0.parquet", "x/.y.tmp"), b"theirs"
    )
    (tmp_path / "theirs" / "x").mkdir(parents=True)
    for path, data in theirs.items():
        (tmp_path / "theirs" / path).write_bytes(data)
    command = commands()[name]
    with pytest.raises(UserError, match="holds "):
        command(tmp_path / "theirs", positions)
    assert datasets.content(tmp_path / "theirs").keys() == theirs.keys()
    assert all((tmp_path / "theirs" / path).read_bytes() == data for path, data in theirs.items())
    if name not in ("ingest", "join"):  # what is of another kind
        before = datasets.content(positions)
        with pytest.raises(UserError, match=r"holds |is no manifest of"):
            command(positions, positions)
        assert datasets.content(positions) == before
