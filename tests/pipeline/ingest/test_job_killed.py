"""An ingest that is killed, anywhere and again and again, and then finishes: the same bytes,
nothing half-written."""

import os
import random
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.errors import IngestError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.validation.verify import files_differ
from tests import forked
from tests.conftest import REPOSITORY
from tests.pipeline import datasets
from tests.pipeline.ingest.begun import FINISHED, begin, kill
from tests.processes import workers_of
from tests.waiting import LONG

CONFIG = IngestConfig(chunk_mib=1, test_share=0.2)
"""Its `planes` are those of the form that the tests are at, which `form` says."""

RUN = """
import os, resource, signal, stat, sys, threading
from pathlib import Path
from pipeline.dataset.files import shards
from pipeline.ingest.chunk import IngestConfig
from pipeline.errors import IngestError
from pipeline.ingest.job import ingest

dump, out, planes = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
workers, kill_at, file_limit = map(int, sys.argv[4:])
real, counting = os.fsync, threading.Lock()  # several threads bring files to the disk

def fsync(descriptor):  # the file is written and has its temporary name
    global kill_at
    if stat.S_ISREG(os.fstat(descriptor).st_mode):  # folders are made to last too
        with counting:
            kill_at -= 1
            if kill_at == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    real(descriptor)

os.fsync = fsync
if file_limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
print("begun", flush=True)
try:
    ingest([dump], out, IngestConfig(chunk_mib=1, test_share=0.2, planes=planes), workers=workers)
except IngestError as error:
    print(error)
    sys.exit(2)
"""


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dump of 5 MB whose first MiB is nearly all comment, so that its shards are small."""
    path = tmp_path_factory.mktemp("kill") / "games.pgn"
    games = [datasets.random_game(seed) for seed in range(100)]
    wordy = games[0].replace("{ ", "{ " + "word " * 4000, 50)
    path.write_text(wordy + "".join("".join(games[at:] + games[:at]) for at in range(12)))
    return path


@pytest.fixture(
    scope="module", params=["all", pytest.param("compact", marks=pytest.mark.slow)], autouse=True
)
def form(request: pytest.FixtureRequest) -> str:
    """Run every test once for each form of planes: what brings files to the disk knows none."""
    global CONFIG
    CONFIG = replace(CONFIG, planes=request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def undisturbed(dump: Path, form: str) -> tuple[dict[str, str], float]:
    """Give the bytes of an undisturbed run, and the seconds it took."""
    out = dump.parent / f"undisturbed-{form}"
    began = time.monotonic()
    ingest([str(dump)], out, CONFIG, workers=1)
    assert files_differ(out) == []
    return datasets.content(out), time.monotonic() - began


def start(
    dump: Path, out: Path, workers: int = 1, kill_at: int = 0, file_limit: int = 0
) -> subprocess.Popen[str]:
    """Start an ingest in a process of its own, and come back when it is about to begin."""
    arguments = [sys.executable, "-c", RUN, str(dump), str(out), CONFIG.planes]
    arguments += [str(workers), str(kill_at), str(file_limit)]
    process = forked.Popen(arguments, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def whole_files(out: Path, expected: dict[str, str]) -> int:
    """Check that what has its name in the build, or already in the folder, is final; give how many
    files do."""
    found = {
        name: digest for name, digest in datasets.content(out).items() if not name.endswith(".tmp")
    }
    ours = {name.removeprefix(".building/"): digest for name, digest in found.items()}
    files = {
        name: digest
        for name, digest in ours.items()
        if not name.startswith("parts/") and name != "run.json"
    }
    assert files.items() <= expected.items()
    return len(files)


def seconds_of(dump: Path, out: Path, workers: int) -> float:
    """Measure a run that is not disturbed."""
    began = time.monotonic()
    assert begin(dump, out, CONFIG, workers).wait() == FINISHED
    return time.monotonic() - began


def test_killed_ten_times_and_started_again(
    dump: Path, undisturbed: tuple[dict[str, str], float], tmp_path: Path
) -> None:
    expected, _ = undisturbed
    chance, killed, finished = random.Random(7), 0, 0
    while killed < 10:
        out = tmp_path / str(finished)
        ended = begin(dump, out, CONFIG, kill_at=chance.randrange(5, 75)).wait()
        assert ended in (FINISHED, -signal.SIGKILL)
        killed += ended != FINISHED
        finished += ended == FINISHED
        whole_files(out, expected)
    ingest([str(dump)], tmp_path / str(finished), CONFIG, workers=1)
    for number in range(finished + 1):
        assert datasets.content(tmp_path / str(number)) == expected


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_drivers_and_workers_killed_a_hundred_times(
    dump: Path, undisturbed: tuple[dict[str, str], float], tmp_path: Path
) -> None:
    expected, _ = undisturbed
    seconds = {
        workers: seconds_of(dump, tmp_path / f"whole-{workers}", workers) for workers in (1, 2)
    }
    chance, drivers, workers_killed, datasets_made = random.Random(11), 0, 0, 0
    while drivers < 70 or workers_killed < 30:
        out = tmp_path / str(datasets_made)
        workers = 2 if workers_killed < 30 and chance.random() < 0.7 else 1
        process = begin(dump, out, CONFIG, workers)
        time.sleep(chance.uniform(0.02, 0.9 if workers == 2 else 0.5) * seconds[workers])
        if workers == 2 and (pool := workers_of(process.pid)):
            victim = chance.choice(pool)
            victim.kill()
            gone, _ = psutil.wait_procs([victim], 30)
            workers_killed += len(gone)
            time.sleep(chance.uniform(0, 0.5) * seconds[2])
        drivers += (by_us := kill(process))
        whole_files(out, expected)
        if not by_us:
            assert datasets.content(out) == expected
            datasets_made += 1
    ingest([str(dump)], tmp_path / str(datasets_made), CONFIG, workers=1)
    assert datasets.content(tmp_path / str(datasets_made)) == expected


def test_killed_with_a_file_open_and_started_again(
    dump: Path, undisturbed: tuple[dict[str, str], float], tmp_path: Path
) -> None:
    expected, _ = undisturbed
    stood = []
    for kill_at in (1, 2, 5, 9):
        process = start(dump, tmp_path / "out", kill_at=kill_at)
        assert process.wait(LONG) == -signal.SIGKILL
        left = [
            path for path in (tmp_path / "out").rglob("*.tmp") if f"-{process.pid}-" in path.name
        ]
        assert left, (
            "the kill left a file open; more than one where others were on their way to the disk"
        )
        stood.append(whole_files(tmp_path / "out", expected))
    assert stood[-1] > stood[0] == 0
    ingest([str(dump)], tmp_path / "out", CONFIG, workers=1)
    assert datasets.content(tmp_path / "out") == expected


def test_killed_when_only_the_manifest_is_missing(
    dump: Path, undisturbed: tuple[dict[str, str], float], tmp_path: Path
) -> None:
    expected, _ = undisturbed
    # threads append to it, where a number that they add to would miss one now and then
    settled: list[int] = []
    real = os.fsync

    def count(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # folders are made to last too
            settled.append(descriptor)
        real(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", count)
        ingest([str(dump)], tmp_path / "counted", CONFIG, workers=1)
    process = start(dump, tmp_path / "out", kill_at=len(settled))
    assert process.wait(LONG) == -signal.SIGKILL
    assert whole_files(tmp_path / "out", expected) == len(expected) - 1
    assert not (tmp_path / "out" / "manifest.json").exists()
    ingest([str(dump)], tmp_path / "out", CONFIG, workers=1)
    assert datasets.content(tmp_path / "out") == expected


def test_a_killed_worker_changes_nothing(
    dump: Path, undisturbed: tuple[dict[str, str], float], tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill(_: object) -> None:
        if not killed:
            killed.append(workers_of()[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    ingest([str(dump)], tmp_path / "out", CONFIG, workers=2, progress=kill)
    assert killed
    assert datasets.content(tmp_path / "out") == undisturbed[0]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_said_and_what_was_finished_is_kept(
    dump: Path, undisturbed: tuple[dict[str, str], float], tmp_path: Path, workers: int
) -> None:
    expected, _ = undisturbed
    process = start(dump, tmp_path / "out", workers=workers, file_limit=90_000)
    said, _ = process.communicate(timeout=LONG)
    assert process.returncode == 2, said
    assert "File too large" in said
    assert "what was finished is kept" in said
    assert whole_files(tmp_path / "out", expected) >= (workers == 1), "the first chunk's shard fits"
    assert not list((tmp_path / "out").rglob("*.tmp"))
    ingest([str(dump)], tmp_path / "out", CONFIG, workers=1)
    assert datasets.content(tmp_path / "out") == expected


named = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="needs /proc to tell which file is written"
)


def fill_at(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk be full when a file of that name is brought to it."""
    real = os.fsync

    def full(descriptor: int) -> None:
        if file in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)


@named
@pytest.mark.parametrize("file", ["train-00001", "test-00001", "games-00001"])
def test_a_chunk_whose_file_does_not_reach_the_disk_is_not_done(
    dump: Path,
    undisturbed: tuple[dict[str, str], float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
) -> None:
    """Its files settle while others are written: the note that vouches for them waits for all."""
    with monkeypatch.context() as patch:
        fill_at(file, patch)
        with pytest.raises(IngestError, match="No space left on device"):
            ingest([str(dump)], tmp_path / "out", CONFIG, workers=1)
    parts = tmp_path / "out" / ".building" / "parts"
    assert (parts / "00000.json").exists()
    assert not (parts / "00001.json").exists()
    assert not list((tmp_path / "out").rglob("*.tmp"))
    assert not list((tmp_path / "out").rglob(f"{file}*.parquet"))
    ingest([str(dump)], tmp_path / "out", CONFIG, workers=1)
    assert datasets.content(tmp_path / "out") == undisturbed[0]


@named
def test_no_space_for_the_games_or_the_manifest(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_at("games.parquet", monkeypatch)
    with pytest.raises(IngestError, match="No space left on device"):
        ingest([str(dump)], tmp_path / "out", CONFIG, workers=1)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not (tmp_path / "out" / "games.parquet").exists()
