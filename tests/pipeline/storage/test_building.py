"""Builds: killed anywhere they end with the same bytes, and files of others in the folder stay as
they are."""

import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import DatasetError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.storage.ownership import KINDS
from tests import forked
from tests.conftest import REPOSITORY
from tests.pipeline import datasets

PLAIN = IngestConfig(chunk_mib=1, test_share=0.2)
THEIRS = {
    "lichess-2013-01.parquet": b"a month",
    "train-00000-of-00016.parquet": b"a shard",
    "train-00007-3.parquet": b"a shard of another program",
    ".train-00000-0.parquet.1.tmp": b"half a file",
    "notes/readme.md": b"words",
}

KILLED = """
import os, signal, sys, threading
from pathlib import Path
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest

def killed(path, target):  # a file has its name, and no note names it yet
    with one:  # the files of a chunk get their names in threads: each is counted by itself
        real(path, target)
        published = len(list(build.glob("*-*-*.parquet")))
        if Path(target).parent == build and published == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)

out, real, one = Path(sys.argv[2]), Path.replace, threading.Lock()
build = out / ".building"
Path.replace = killed
ingest([sys.argv[1]], out, IngestConfig(chunk_mib=1, test_share=0.2), workers=1)
"""


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dump of three chunks."""
    path = tmp_path_factory.mktemp("strangers") / "games.pgn"
    games = [datasets.random_game(seed) for seed in range(60)]
    path.write_text("".join("".join(games[at:] + games[:at]) for at in range(13)))
    return path


def put(out: Path, **more: bytes) -> dict[str, bytes]:
    """Put files of others into a folder, and give them."""
    theirs = THEIRS | {name.replace("__", "."): data for name, data in more.items()}
    for name, data in theirs.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(data)
    return theirs


def check(out: Path, theirs: dict[str, bytes]) -> None:
    """Check that the files of others are as they were."""
    assert {name: (out / name).read_bytes() for name in theirs} == theirs


def killed(dump: Path, out: Path, shards: int = 2) -> None:
    """Kill an ingest when so many shards are written."""
    command = [sys.executable, "-c", KILLED, str(dump), str(out), str(shards)]
    assert forked.run(command, cwd=REPOSITORY).returncode == -signal.SIGKILL


def test_a_folder_of_others_is_refused_and_left_as_it_is(dump: Path, tmp_path: Path) -> None:
    for name in THEIRS:
        out = tmp_path / name.partition("/")[0].replace(".", "-")
        (out / name).parent.mkdir(parents=True)
        (out / name).write_bytes(THEIRS[name])
        with pytest.raises(
            DatasetError, match=f"holds '{name.partition('/')[0]}', which is not of a dataset"
        ):
            ingest([str(dump)], out, PLAIN, workers=1)
        assert {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} == {
            name
        }
        check(out, {name: THEIRS[name]})


def test_what_others_put_beside_a_killed_ingest_is_left_by_all_that_follows(
    dump: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    killed(dump, out, shards=4)
    theirs = put(out)
    with pytest.raises(DatasetError, match="an unfinished ingest with other config"):
        ingest([str(dump)], out, replace(PLAIN, seed=1), workers=1)
    check(out, theirs)
    ingest([str(dump)], out, PLAIN, workers=1)
    check(out, theirs)
    ingest([str(dump)], tmp_path / "clean", PLAIN, workers=1)
    assert datasets.content(out).items() >= datasets.content(tmp_path / "clean").items()
    assert set(datasets.content(out)) == {*datasets.content(tmp_path / "clean"), *theirs}


def test_a_restart_with_other_settings_before_anything_was_done_takes_only_what_is_ours(
    dump: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    killed(dump, out)
    assert not list((out / ".building").glob("[0-9]*.json"))
    assert len(list((out / ".building").glob("*.parquet"))) == 2
    theirs = put(out)
    other = replace(PLAIN, seed=1)
    ingest([str(dump)], out, other, workers=1)
    check(out, theirs)
    ingest([str(dump)], tmp_path / "clean", other, workers=1)
    assert set(datasets.content(out)) == {*datasets.content(tmp_path / "clean"), *theirs}
    assert datasets.content(out).items() >= datasets.content(tmp_path / "clean").items()


@pytest.mark.parametrize(
    "name", ["train-00001-0.parquet", "train-00000-0.parquet", "games.parquet", "CARD.md"]
)
def test_a_file_of_another_s_under_a_name_that_is_needed_is_named_and_left(
    dump: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "out"
    killed(dump, out)
    (out / name).write_bytes(b"theirs")
    (out / "link.parquet").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match=f"{name} is not of this build: move it away"):
        ingest([str(dump)], out, PLAIN, workers=1)
    assert (out / name).read_bytes() == b"theirs"
    (out / name).rename(tmp_path / "theirs")
    (out / name).symlink_to(tmp_path / "theirs")
    with pytest.raises(DatasetError, match=f"{name} is not of this build"):
        ingest([str(dump)], out, PLAIN, workers=1)
    assert (out / name).is_symlink()
    (out / name).unlink()
    ingest([str(dump)], out, PLAIN, workers=1)
    ingest([str(dump)], tmp_path / "clean", PLAIN, workers=1)
    assert datasets.content(out) == datasets.content(tmp_path / "clean")
    assert (out / "link.parquet").is_symlink()


def test_a_folder_of_somebody_else_with_the_builds_name_is_left(dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ingest([str(dump)], out, PLAIN, workers=1)
    (out / ".building").mkdir()
    (out / ".building" / "gearbox.step").write_bytes(b"of a program that builds too")
    ingest([str(dump)], out, PLAIN, workers=1)
    assert (out / ".building" / "gearbox.step").read_bytes() == b"of a program that builds too"


FINISHING = """
import os, signal, sys
from pathlib import Path
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest

def killed(path, target):
    global left
    real(path, target)
    left -= Path(target).parent == Path(sys.argv[2])
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

real, left = Path.rename, int(sys.argv[3])
Path.rename = killed
ingest([sys.argv[1]], Path(sys.argv[2]), IngestConfig(chunk_mib=1, test_share=0.2), workers=1)
"""


def test_killed_while_files_get_their_names_it_is_no_dataset_and_then_the_same(
    dump: Path, tmp_path: Path
) -> None:
    manifest = ingest([str(dump)], tmp_path / "clean", PLAIN, workers=1)
    names = len(datasets.content(tmp_path / "clean"))
    for moved in (1, names // 2, names - 1, names):
        out = tmp_path / str(moved)
        command = [sys.executable, "-c", FINISHING, str(dump), str(out), str(moved)]
        assert forked.run(command, cwd=REPOSITORY).returncode == -signal.SIGKILL
        assert (out / "manifest.json").exists() == (moved == names)
        assert ingest([str(dump)], out, PLAIN, workers=1) == manifest
        assert datasets.content(out) == datasets.content(tmp_path / "clean")
        assert not (out / ".building").exists()


def test_every_kind_has_a_name_and_a_mark() -> None:
    assert (
        len({(kind.marks, kind.key) for kind in KINDS})
        == len({kind.name for kind in KINDS})
        == len(KINDS)
    )
