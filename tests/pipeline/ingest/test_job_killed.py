"""Kill workers and drivers of an ingest, or fill its disk: a restart gives the same bytes.

tests/pipeline/storage/test_job_folder.py kills an ingest at every file operation.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pipeline.errors import IngestError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.validation.verify import compare_files
from tests import forked
from tests.conftest import REPOSITORY
from tests.pipeline import datasets
from tests.processes import list_workers
from tests.waiting import HANG_TIMEOUT_SECONDS

CONFIG = IngestConfig(chunk_mib=1, test_share=0.2)
KILLS = int(os.environ.get("FIANCHETTO_TESTS_KILLS", "40"))


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dump of 5 MB whose first chunk is mostly comments, so that its shards are small."""
    path = tmp_path_factory.mktemp("kill") / "games.pgn"
    games = [datasets.random_game(seed) for seed in range(40)]
    wordy = games[0].replace("{ ", "{ " + "word " * 4000, 50)
    path.write_text(wordy + "".join("".join(games[at:] + games[:at]) for at in range(30)))
    return path


@pytest.fixture(scope="module")
def undisturbed(dump: Path) -> dict[str, str]:
    """Return the hashes of the files of an undisturbed run."""
    out = dump.parent / "undisturbed"
    ingest([str(dump)], out, CONFIG, workers=1)
    assert compare_files(out) == []
    return datasets.content(out)


def start_ingest(dump: Path, out: Path, workers: int) -> forked.Popen:
    options = ["--set", "chunk_mib=1", "--set", "test_share=0.2", "--workers", str(workers)]
    words = [sys.executable, "-m", "pipeline", "ingest", str(dump), "--out", str(out), *options]
    return forked.Popen(words, cwd=REPOSITORY, stderr=subprocess.DEVNULL)


def kill(process: forked.Popen) -> bool:
    """Kill an ingest, wait for its workers, and return False if it had already finished."""
    try:
        workers = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        workers = []
    # a finished process keeps its id until it is waited for
    os.kill(process.pid, signal.SIGKILL)
    status = process.wait()
    _, alive = psutil.wait_procs(workers, timeout=HANG_TIMEOUT_SECONDS)
    assert alive == [], "a worker has outlived its driver"
    return status == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_ingest_whose_driver_and_workers_are_killed_at_random_gives_the_same_files(
    dump: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    start = time.monotonic()
    ingest([str(dump)], tmp_path / "whole", CONFIG, workers=2)
    seconds = time.monotonic() - start
    rng, kills, finished = random.Random(11), 0, 0
    while kills < KILLS:
        out = tmp_path / str(finished)
        process = start_ingest(dump, out, workers=1 + kills % 2)
        time.sleep(rng.uniform(0.02, 0.8) * seconds)
        if workers := list_workers(process.pid):
            victim = rng.choice(workers)
            victim.kill()
            gone, _ = psutil.wait_procs([victim], 30)
            kills += len(gone)
            time.sleep(rng.uniform(0, 0.5) * seconds)
        kills += (was_killed := kill(process))
        # every file that has its final name, in the build or beside it, is complete
        found = {
            name.removeprefix(".building/"): digest
            for name, digest in datasets.content(out).items()
            if "/parts/" not in name and not name.endswith(".tmp") and name != "job.json"
        }
        assert found.items() <= undisturbed.items()
        if not was_killed:
            assert datasets.content(out) == undisturbed
            finished += 1
    ingest([str(dump)], tmp_path / str(finished), CONFIG, workers=1)
    assert datasets.content(tmp_path / str(finished)) == undisturbed


def test_an_ingest_survives_a_killed_worker(
    dump: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill_one(_: object) -> None:
        if not killed:
            killed.append(list_workers()[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    ingest([str(dump)], tmp_path / "out", CONFIG, workers=2, progress=kill_one)
    assert killed
    assert datasets.content(tmp_path / "out") == undisturbed


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to name open files")
def test_a_chunk_has_no_note_if_one_of_its_files_is_not_on_disk(
    dump: Path, undisturbed: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are flushed in the background while the next ones are written."""
    fsync = os.fsync

    def fail_for_one_shard(descriptor: int) -> None:
        if "train-00001" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_for_one_shard)
        with pytest.raises(IngestError, match="No space left on device"):
            ingest([str(dump)], tmp_path / "out", CONFIG, workers=1)
    parts = tmp_path / "out" / ".building" / "parts"
    assert (parts / "00000.json").exists()
    assert not (parts / "00001.json").exists()
    ingest([str(dump)], tmp_path / "out", CONFIG, workers=1)
    assert datasets.content(tmp_path / "out") == undisturbed
