"""The compiled readers on bytes that nobody meant them to read, and on PGN with accidents."""

import random
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline.dumps import chunks, source
from pipeline.dumps.source import Source
from pipeline.ingest.games import read_games
from pipeline.pgn import replay
from pipeline.pgn.split import Splitter
from pipeline.pgn.split import split as split_games
from tests.conftest import shared_data
from tests.pipeline import by_kernels
from tests.pipeline.pgn import mutants
from tests.pipeline.pgn.test_replay import FILES

PIECES = (
    *mutants.SNIPPETS,
    *(b'[WhiteElo "9999999999"]', b'[TimeControl "1e9+x"]', b"1. e4 e5 2. Nf3 Nc6", b"\xbd"),
    *(b"[%clk 99999999999:61:61]", b"[%eval 1e5]", b"{[%eval ", b"{[%clk "),
)
ACCIDENTS = st.lists(st.sampled_from(PIECES), max_size=60).map(b"".join)
NOISE = st.binary(max_size=400)

quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def split(text: bytes, cuts: list[int] | None = None) -> list[int]:
    """Find the games of a text, in one piece or in whole lines up to each cut."""
    data = np.frombuffer(text, dtype=np.uint8)
    starts = np.empty(len(text) // 2 + 2, dtype=np.int64)
    splitter = Splitter()
    count = split_games(data, 0, len(text), True, splitter.state, starts)
    return starts[:count].tolist()


@quick
@given(st.one_of(NOISE, ACCIDENTS))
def test_any_bytes_split_into_games_within_bounds(text: bytes) -> None:
    starts = split(text)
    assert starts == sorted(set(starts))
    assert all(0 <= start < len(text) for start in starts)
    before = text[: starts[0]] if starts else text
    for line in before.splitlines():  # only blanks and comments precede the first game
        assert not line.strip(b" \t\x0b\x0c\x1c\x1d\x1e\x1f") or line[:1] in (b"%", b";")


@quick
@given(st.one_of(NOISE, ACCIDENTS))
@example(b"1. e4 {[%eval ")
@example(b"1. e4 {[%clk 1")
@example(b"1. e4 e8=")
@example(b"1. e4 0-")
@example(b"1/2-")
@example(b"N@")
@example(b"[")
@example(b"\xa0")
def test_any_bytes_are_read_to_a_status_within_bounds(text: bytes) -> None:
    # bytes after the text would complete a move, a comment or a result
    for tail in (b"", b"e5 } ] ) 1-0 e4 Q 1/2\n"):
        starts = np.array(split(text), dtype=np.int64)
        whole = np.frombuffer(text + tail, dtype=np.uint8)
        tagged = read_games(whole[: len(text)], starts)
        rows = replay.allocate_rows(replay.MAX_PLIES + 2 + len(text))
        game, filled = replay.replay(tagged.text, tagged.games, tagged.setups, 0, rows)
        assert game == len(starts)
        assert (tagged.spans >= 0).all()
        assert (tagged.spans <= len(text)).all()
        assert (tagged.spans[:, :, 0] <= tagged.spans[:, :, 1]).all()
        assert (tagged.games.movetext <= len(text)).all()
        assert (tagged.games.status < len(replay.STATUS)).all()
        used = tagged.games.status == replay.USED
        assert int(tagged.games.plies[used].sum()) == filled
        outcome = (
            tagged.games.status.tolist(),
            tagged.games.plies.tolist(),
            rows.label[:filled].tolist(),
        )
        if not tail:
            alone = outcome
    assert outcome == alone


def chunked(
    path: Path, block: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, bytes]]:
    """Read a file's games as (offset, text) through the stream, `block` bytes at a time."""
    with monkeypatch.context() as patch:
        for room in (source, chunks):
            patch.setattr(room, "BLOCK_BYTES", block)
        patch.setattr(chunks, "MAX_GAME_BYTES", 1 << 16)
        found = []
        for chunk in chunks.read_chunks([Source(str(path))], chunk_bytes):
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


def real_games(name: str) -> list[bytes]:
    """Return 40 pairs of neighbouring games from the first 2 MB of a file."""
    path = shared_data(name)
    with pa.input_stream(
        str(path), compression="zstd" if path.suffix == ".zst" else None
    ) as stream:
        text = stream.read(2 << 20)
    starts = [match.start() for match in re.finditer(rb"(?m)^\[Event ", text)]
    picked = np.linspace(0, len(starts) - 3, 40).astype(int)
    return [text[starts[at] : starts[at + 2]] for at in picked]


def assert_mutants_agree(sources: list[bytes], count: int, path: Path) -> None:
    """Compare the readers on the games of `count` mutants."""
    chance, statuses = random.Random(count), Counter[str]()
    for number in range(count):
        text = mutants.mutate(chance.choice(sources), chance)
        path.write_bytes(text)
        games = list(by_kernels.games(path)) if text else []
        assert not (found := mutants.differ(games)), f"mutant {number}: {found}\n{text!r}"
        statuses.update(game.status for game in games)
    print(dict(statuses.most_common()))  # noqa: T201 - `pytest -s` shows what becomes of mutants


def test_mutants_of_games_are_read_as_by_python_chess(tmp_path: Path) -> None:
    sources = [mutants.write_game(seed) + mutants.write_game(seed + 1) for seed in range(0, 40, 2)]
    assert_mutants_agree(sources, 150, tmp_path / "mutant.pgn")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["generated", "real"])
def test_ten_thousand_mutants_are_read_as_by_python_chess(kind: str, tmp_path: Path) -> None:
    if kind == "real":
        sources = [pair for name in FILES for pair in real_games(name)]
    else:
        sources = [
            mutants.write_game(seed) + mutants.write_game(seed + 1) for seed in range(0, 400, 2)
        ]
    assert_mutants_agree(sources, 10_000, tmp_path / "mutant.pgn")
