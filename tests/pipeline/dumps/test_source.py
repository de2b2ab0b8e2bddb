"""Read dumps as streams: zero bytes, stops, pipes, and the limit of games per chunk."""

import gzip
import io
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from pipeline.dumps import chunks
from pipeline.dumps.chunks import read_chunks
from pipeline.dumps.source import Source, require_dump
from pipeline.errors import Stopped
from tests.pipeline import by_kernels, datasets

GAME = datasets.random_game(1).encode()


@pytest.mark.parametrize("place", [2, 3000, 5000, 70_000])
def test_a_zero_byte_changes_no_move(place: int, tmp_path: Path) -> None:
    text, path = GAME * 30, tmp_path / "a.pgn"
    path.write_bytes(text)
    expected = [game.moves for game in by_kernels.games(path)]
    at = text.index(b" ", place)
    path.write_bytes(text[:at] + b"\0" + text[at:])
    assert [game.moves for game in by_kernels.games(path)] == expected


WITHOUT_GAMES: dict[str, Callable[[], bytes]] = {
    "blank.pgn": lambda: b"\n" * (16 << 20),
    "bomb.pgn.zst": lambda: zstandard.compress(b"\n" * (8 << 20)),
    "bomb.csv.gz": lambda: gzip.compress(b"PuzzleId,FEN,Moves\n" + b"\n" * (8 << 20)),
}


@pytest.mark.parametrize("name", WITHOUT_GAMES)
def test_text_without_games_can_be_stopped(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(WITHOUT_GAMES[name]())
    source = Source(str(tmp_path / name), lambda: source.bytes_read > 0)
    with pytest.raises(Stopped, match="run the same command to continue"):
        next(read_chunks([source], 1 << 20))
    assert source.text_bytes == 0


def test_hashing_the_bytes_after_damage_can_be_stopped(tmp_path: Path) -> None:
    path = tmp_path / "damaged.pgn.gz"
    path.write_bytes(gzip.compress(GAME)[:-9] + b"\xff" * (8 << 20))
    source = Source(str(path), lambda: source.damage != "")
    with pytest.raises(Stopped):
        list(read_chunks([source], 1 << 20))
    assert source.bytes_read < 3 << 20


@pytest.mark.parametrize("before", [b"", GAME * 2])
def test_reading_can_be_stopped_while_standard_input_sends_nothing(
    before: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_end = os.pipe()
    stopped = threading.Event()
    with os.fdopen(read_end, "rb") as stdin, os.fdopen(write_end, "wb", buffering=0) as writer:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
        writer.write(before)
        threading.Timer(0.05, stopped.set).start()
        with pytest.raises(Stopped, match="stopped while reading -"):
            next(read_chunks([Source("-", stopped.is_set)], 1 << 20))


def test_standard_input_may_arrive_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    archive = zstandard.compress(GAME * 100)

    def write_pieces() -> None:
        with os.fdopen(write_end, "wb", buffering=0) as writer:
            for at in range(0, len(archive), 7):
                writer.write(archive[at : at + 7])

    threading.Thread(target=write_pieces).start()
    with os.fdopen(read_end, "rb") as stdin:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
        texts = [chunk.text for chunk in read_chunks([Source("-")], 10_000)]
    assert b"".join(texts) == GAME * 100


@pytest.mark.parametrize("chunk_bytes", [1 << 16, 1 << 23])
def test_the_number_of_games_in_a_chunk_is_limited(
    chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "MAX_GAMES", 1000)
    text = b"*\n\n" * 12_345
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    found: list[Any] = list(read_chunks([Source("-")], chunk_bytes))
    assert [len(chunk.starts) for chunk in found] == [1000] * 12 + [345]
    assert [chunk.first_game for chunk in found] == list(range(0, 12_345, 1000))
    assert b"".join(bytes(chunk.text) for chunk in found) == text


def test_a_named_pipe_is_read_and_can_be_stopped_before_anything_is_written(tmp_path: Path) -> None:
    pipe = tmp_path / "games.pgn"
    os.mkfifo(pipe)
    require_dump(str(pipe))
    with pytest.raises(Stopped):
        next(read_chunks([Source(str(pipe), stop=lambda: True)], 1 << 20))
    writer = threading.Thread(target=lambda: pipe.write_bytes(GAME * 3))
    writer.start()
    (chunk,) = read_chunks([Source(str(pipe))], 1 << 20)
    writer.join()
    assert len(chunk.starts) == 3
