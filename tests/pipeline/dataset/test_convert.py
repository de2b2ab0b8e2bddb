"""Datasets converted between forms; rows as FEN and UCI."""

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import chess
import chess.pgn
import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.dataset.batches import Batches
from pipeline.dataset.convert import convert
from pipeline.dataset.fen_rows import fen_rows, write_fen_rows
from pipeline.dataset.files.columns import FORMS, Form
from pipeline.dataset.files.shards import read_manifest, verify
from pipeline.dataset.join import JoinConfig, join
from pipeline.errors import ConfigError, DatasetError, Stopped
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.validation.audit.audit import audit
from pipeline.validation.verify import verify_dataset
from tests import forked
from tests.conftest import REPOSITORY
from tests.pipeline import datasets
from tests.pipeline.hostile import column, stored

CONFIG = {"chunk_mib": 1, "test_share": 0.2, "val_share": 0.1}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make one dataset in each form."""
    folder = tmp_path_factory.mktemp("converted")
    dump = datasets.dump(folder / "games.pgn", 40)
    found = {"dump": dump}
    for form in FORMS:
        ingest([str(dump)], folder / form, IngestConfig(**CONFIG, planes=form), workers=1)
        found[form] = folder / form
    return found


@pytest.mark.parametrize(("of", "to"), [("all", "compact"), ("compact", "all")])
def test_a_converted_dataset_is_what_ingest_would_have_made(
    made: dict[str, Path], of: str, to: str, tmp_path: Path
) -> None:
    form: Form = read_manifest(made[to])["planes"]
    manifest = convert(made[of], form, tmp_path / "out")
    assert datasets.content(tmp_path / "out", "*-*.parquet") == datasets.content(made[to], "*-*.parquet")
    assert verify(tmp_path / "out") == []
    assert manifest == read_manifest(tmp_path / "out")
    assert manifest["converted_from"]
    expected = read_manifest(made[to])
    assert {name: manifest[name] for name in expected if name != "converted_from"} == expected
    assert (tmp_path / "out" / "CARD.md").read_text() == (made[to] / "CARD.md").read_text()
    assert not (tmp_path / "out" / ".building").exists()
    assert convert(made[of], form, tmp_path / "out") == manifest, "a second time it is left"
    found = verify_dataset(tmp_path / "out", [str(made["dump"])], workers=1, everything=True)
    assert not [line for name in ("files", "splits", "source", "rows") for line in found[name]]


def test_members_of_several_forms_make_one_training_set(made: dict[str, Path], tmp_path: Path) -> None:
    paths = [made[form] for form in FORMS]
    page = join(paths, tmp_path / "set", JoinConfig(hold_out="none"))
    assert page["positions"]["train"] == 2 * read_manifest(made["all"])["positions"]["train"]
    rows = Batches([tmp_path / "set"], batch_size=40, seed=1)
    assert not rows.packed
    plies = np.concatenate([batch["ply"] for batch in rows.once()])
    assert len(plies) == page["positions"]["train"]
    assert len(next(rows.from_step(2))["planes"]) == 40
    found = audit([tmp_path / "set"])
    assert found["copies"]["distinct"] * 2 <= found["copies"]["positions"]


def test_a_stopped_conversion_is_continued_to_the_same_bytes(made: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="run the same command to continue"):
        convert(made["all"], "compact", tmp_path / "out", stop=lambda: True)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert (tmp_path / "out" / ".building").exists()
    with pytest.raises(DatasetError, match="something else that is unfinished"):
        convert(made["all"], "all", tmp_path / "out")
    convert(made["all"], "compact", tmp_path / "out")
    assert datasets.content(tmp_path / "out", "*-*.parquet") == datasets.content(made["compact"], "*-*.parquet")


def test_a_killed_conversion_is_continued_to_the_same_bytes(made: dict[str, Path], tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pipeline",
        "convert",
        str(made["all"]),
        "--planes",
        "compact",
        "--out",
        str(tmp_path / "o"),
    ]
    killed, kill_at = 0, 12
    while forked.run(command, env=os.environ | {forked.KILL_AT: str(kill_at)}).returncode == -signal.SIGKILL:
        killed, kill_at = killed + 1, kill_at + 8
    assert killed > 1
    convert(made["all"], "compact", tmp_path / "o")
    assert datasets.content(tmp_path / "o", "*-*.parquet") == datasets.content(made["compact"], "*-*.parquet")


def test_a_full_disk_is_not_called_a_damaged_shard(made: dict[str, Path], tmp_path: Path) -> None:
    """The shard that is read is whole; the same command goes on once there is room."""
    words = [sys.executable, "-m", "pipeline", "convert", str(made["compact"]), "--planes", "all", "--out"]
    limit = f"ulimit -f 4; exec {shlex.join([*words, str(tmp_path / 'out')])}"
    done = subprocess.run(["bash", "-c", limit], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"fianchetto: [Errno 27] File too large: '{tmp_path / 'out' / '.building' / 'train-00000-0.parquet'}': "
        "what was finished is kept, run the same command to continue"
    )
    convert(made["compact"], "all", tmp_path / "out")
    assert datasets.content(tmp_path / "out", "*-*.parquet") == datasets.content(made["all"], "*-*.parquet")


def test_planes_that_are_not_of_their_position_have_no_compact_form(made: dict[str, Path], tmp_path: Path) -> None:
    import shutil

    shutil.copytree(made["all"], tmp_path / "x")
    spoilt = column("moves_knight", (1).to_bytes(8, "little") * 8)
    stored("x/train-00000-0.parquet", spoilt)(tmp_path)
    with pytest.raises(DatasetError, match=r"train-00000-0\.parquet"):
        convert(tmp_path / "x", "compact", tmp_path / "out")


def test_what_cannot_be_converted_is_said(made: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="planes are all or compact"):
        convert(made["all"], "some", tmp_path / "out")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="which is read from"):
        convert(made["all"], "compact", made["all"] / "inside")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "notes.txt").write_text("mine")
    with pytest.raises(DatasetError):
        convert(made["all"], "compact", tmp_path / "others")


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_the_positions_and_moves_of_the_games(made: dict[str, Path], form: str) -> None:
    games = []
    with made["dump"].open() as file:
        while (game := chess.pgn.read_game(file)) is not None:
            games.append([(node.parent.board().fen(en_passant="fen"), node.move.uci()) for node in game.mainline()])
    found = [row for table in fen_rows(made[form]) for row in table.to_pylist()]
    assert len(found) == sum(map(len, games))
    for row in found:
        assert (row["fen"], row["uci"]) == games[row["game"]][row["ply"]]
    assert {row["split"] for row in found} == {"train", "val", "test"}


def test_rows_are_written_as_csv_and_parquet(made: dict[str, Path], tmp_path: Path) -> None:
    total = read_manifest(made["compact"])["positions"]["total"]
    assert write_fen_rows(made["compact"], tmp_path / "rows.parquet") == total
    whole = pq.read_table(tmp_path / "rows.parquet")
    assert write_fen_rows(made["compact"], tmp_path / "some.csv", split="train", count=77) == 77
    with (tmp_path / "some.csv").open() as file:
        some = list(csv.DictReader(file))
    assert [(row["fen"], row["uci"]) for row in some] == list(
        zip(whole["fen"].to_pylist()[:77], whole["uci"].to_pylist()[:77], strict=True)
    )
    with pytest.raises(ConfigError, match="is there already"):
        write_fen_rows(made["compact"], tmp_path / "some.csv")
    with pytest.raises(ConfigError, match=r"\.csv or \.parquet"):
        write_fen_rows(made["compact"], tmp_path / "some.txt")


def test_rows_that_were_killed_while_they_were_written_leave_nothing_behind(
    made: dict[str, Path], tmp_path: Path
) -> None:
    killed = """
import os, signal, sys
from pathlib import Path
from pipeline.dataset.fen_rows import write_fen_rows

write_fen_rows(Path(sys.argv[1]), Path(sys.argv[2]), progress=lambda tick: os.kill(os.getpid(), signal.SIGKILL))
"""
    command = [sys.executable, "-c", killed, str(made["compact"]), str(tmp_path / "rows.csv")]
    assert forked.run(command, cwd=REPOSITORY).returncode == -signal.SIGKILL
    assert [path.suffix for path in tmp_path.iterdir()] == [".tmp"]
    write_fen_rows(made["compact"], tmp_path / "rows.csv", count=5)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_the_commands(
    made: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.cli.main import main

    def run(*words: str) -> dict[str, object]:
        monkeypatch.setattr(sys, "argv", ["fianchetto", *words, "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return json.loads(capsys.readouterr().out)

    said = run("convert", str(made["all"]), "--planes", "compact", "--out", str(tmp_path / "out"))
    assert said["planes"] == "compact"
    monkeypatch.setattr(sys, "argv", sys.argv[:-1])
    with pytest.raises(SystemExit):
        main()
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[0]) == (5, f"{tmp_path / 'out'} is complete already: nothing was done")
    rows = run("rows", str(tmp_path / "out"), "--count", "3")["rows"]
    assert len(rows) == 3  # type: ignore[arg-type]
    assert run("rows", str(made["all"]), "--count", "3")["rows"] == rows
    said = run("rows", str(made["all"]), "--out", str(tmp_path / "rows.csv"))
    assert said["rows"] == read_manifest(made["all"])["positions"]["total"]
