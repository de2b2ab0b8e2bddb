"""The compiled readers on bytes that nobody meant them to read, and on PGN with accidents."""

import re
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline.dumps import reader
from pipeline.dumps.reader import Chunk, Source
from pipeline.errors import DumpError
from pipeline.ingest.chunk import IngestConfig, read_games
from pipeline.pgn import replay, tags
from tests.pipeline import by_kernels, by_python_chess, datasets
from tests.pipeline.by_kernels import replay_chunk

PIECES = (
    '[Event "a"]', '[Event "b"]\n', '[Result "1-0"]', '[FEN "8/8/8/8/8/8/8/K6k w - - 0 1"]', '[Variant "Atomic"]', "[",
    '[WhiteElo "9999999999"]', '[TimeControl "1e9+x"]', "1. e4 e5 2. Nf3 Nc6", "1-0", "0-1", "1/2-1/2", "*", "{", "}",
    "{ [%clk 0:01:00] [%eval -#3] }", "(", ")", ";", "%", "$1", "$", "\n", "\n\n", "\r", "\r\n", "\r\n\r\n", " ", "\t",
    "e4", "O-O", "O-O-O", "0-0", "0000", "--", "Z0", "@@@@", "N@f3", "e8=Q", "exd6e.p.", "g1f3", "Kg1", "N", "=", "x",
    "1.", "1...", "!?", "\x00", "\xff", "½", "[%clk 99999999999:61:61]", "[%eval 1e5]", "{[%eval ", "{[%clk ",
)  # fmt: skip
ACCIDENTS = st.lists(st.sampled_from(PIECES), max_size=60).map(lambda parts: "".join(parts).encode("latin-1"))
NOISE = st.binary(max_size=400)

SLIPS = (b"", b"#", b"a", b"1", b".", b" ", b"e4", b"\n")

quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def split(text: bytes, cuts: list[int] | None = None) -> list[int]:
    """Find the games of a text, in one piece or in whole lines up to each cut."""
    data = np.frombuffer(text, dtype=np.uint8)
    starts = np.empty(len(text) // 2 + 2, dtype=np.int64)
    splitter = tags.Splitter()
    count = tags.split(data, 0, len(text), splitter.state, starts)
    return starts[:count].tolist()


@quick
@given(st.one_of(NOISE, ACCIDENTS))
def test_any_bytes_split_into_games_within_bounds(text: bytes) -> None:
    starts = split(text)
    assert starts == sorted(set(starts))
    assert all(0 <= start < len(text) for start in starts)
    before = text[: starts[0]] if starts else text
    for line in before.splitlines():  # nothing but blanks and remarks may lie before the first game
        assert not line.strip(b" \t\x0b\x0c") or line[:1] in (b"%", b";")


@quick
@given(st.one_of(NOISE, ACCIDENTS))
@example(b"1. e4 N")
@example(b"1. e4 {[%eval ")
@example(b"1. e4 {[%clk 1")
@example(b"1. e4 e8=")
@example(b"1. e4 0-")
@example(b"1. e4 (")
@example(b"1/2-")
@example(b"@")
@example(b"N@")
@example(b"[")
def test_any_bytes_are_read_to_a_status_within_bounds(text: bytes) -> None:
    # The bytes behind the text would finish a move, a comment, a result: whoever reads them reads too far.
    for tail in (b"", b"e5 } ] ) 1-0 e4 Q 1/2\n"):
        starts = np.array(split(text), dtype=np.int64)
        whole = np.frombuffer(text + tail, dtype=np.uint8)
        tagged = read_games(whole[: len(text)], starts, IngestConfig())
        rows = replay.empty_rows(replay.MAX_PLIES + 2 + len(text))
        game, filled = replay.replay(whole[: len(text)], tagged.games, tagged.setups, 0, 1, rows)
        assert game == len(starts)
        assert (tagged.spans >= 0).all()
        assert (tagged.spans <= len(text)).all()
        assert (tagged.spans[:, :, 0] <= tagged.spans[:, :, 1]).all()
        assert (tagged.games.movetext <= len(text)).all()
        assert (tagged.games.status < len(replay.STATUS)).all()
        used = tagged.games.status == replay.USED
        assert int(tagged.games.plies[used].sum()) == filled
        outcome = tagged.games.status.tolist(), tagged.games.plies.tolist(), rows.label[:filled].tolist()
        if not tail:
            alone = outcome
    assert outcome == alone


def chunked(path: Path, block: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes]]:
    """Read a file's games as (offset, text) through the stream, `block` bytes at a time."""
    with monkeypatch.context() as patch:
        patch.setattr(reader, "BLOCK", block)
        patch.setattr(reader, "LONGEST_GAME", 1 << 16)
        found = []
        for chunk in reader.chunks([Source(str(path))], chunk_bytes):
            bounds = [*chunk.starts.tolist(), len(chunk.text)]
            for first, last in pairwise(bounds):
                found.append((chunk.offset + first, chunk.text[first:last]))
        return found


@quick
@given(text=ACCIDENTS, block=st.integers(1, 40), chunk_bytes=st.integers(1, 200))
@example(text=b'[Event "a"]\r\n\r\n1. e4\r\ne5 1-0\r\n', block=1, chunk_bytes=10)
@example(text=b"1. e4\re5 1-0\r\r1. d4 1-0\r", block=1, chunk_bytes=10)
def test_the_games_do_not_depend_on_how_the_stream_is_read(
    text: bytes, block: int, chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = text.replace(b"\x00", b"") or b"\n"
    path = tmp_path / "dump.pgn"
    path.write_bytes(text)
    if text.startswith((b"\x28\xb5\x2f\xfd", b"\x1f\x8b", b"BZh")):
        return
    games = chunked(path, block, chunk_bytes, monkeypatch)
    starts = split(text)
    bounds = [*starts, len(text)]
    assert games == [(first, text[first:last]) for first, last in pairwise(bounds)]


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 5),
    accidents=st.lists(st.tuples(st.floats(0, 0.98), st.integers(0, 8), st.sampled_from(SLIPS)), max_size=3),
)
@example(seed=1, accidents=[(0.96875, 6, b""), (0.9765625, 8, b""), (0.9799999999999999, 7, b"")])  # `Ra7k`
@example(seed=0, accidents=[(0.0, 0, b"\n"), (0.166015625, 6, b"\n")])  # an empty line more, and a line that % escapes
def test_a_game_with_accidents_is_used_only_where_python_chess_replays_the_same_moves(
    seed: int, accidents: list[tuple[float, int, bytes]], tmp_path: Path
) -> None:
    text = datasets.random_game(seed, 30).encode()
    head, moves = text.split(b"\n\n", 1)
    for place, length, new in accidents:
        at = int(place * len(moves))
        moves = moves[:at] + new + moves[at + length :]
    path = tmp_path / "dump.pgn"
    path.write_bytes(head + b"\n\n" + moves)
    # python-chess takes the 1 of `1e4` for the pawn's rank, this project for a move number.
    spaced = re.sub(rb"(?<![a-zA-Z0-9-])(\d+)(?=[a-h][1-8])", rb"\1 ", moves)
    spaced = spaced.lstrip(b"\n")  # at a second empty line behind the tags it begins another game, without any
    games = list(by_kernels.games(path))
    if any(game.status == "unclosed comment" for game in games):
        return  # python-chess takes the rest of the file for the comment, and the game for whole
    mine = [game for game in games if game.status == "used"]
    readings = by_python_chess.read(head + b"\n\n" + spaced)
    theirs = [reading for reading in readings if reading.verdict == "used"]
    assert [game.plies for game in mine] == [len(reading.moves) for reading in theirs]
    assert [game.result for game in mine] == [reading.result for reading in theirs]


def test_noise_is_refused_or_read_and_never_more(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    for size in (1, 3, 100, 10_000):
        path = tmp_path / "noise.pgn"
        path.write_bytes(chance.integers(1, 256, size, dtype=np.uint8).tobytes())
        with suppress(DumpError):
            for chunk in reader.chunks([Source(str(path))], 1 << 20):
                assert isinstance(chunk, Chunk)
                assert len(replay_chunk(chunk)[1].label) == 0
