"""Read random bytes and damaged PGN: kernels stay in bounds, and agree with python-chess."""

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline.dumps import chunks, source
from pipeline.dumps.source import Source
from pipeline.ingest.games import read_games
from pipeline.pgn import replay
from pipeline.pgn.split import Splitter, split
from tests.pipeline import by_kernels
from tests.pipeline.pgn import mutants
from tests.pipeline.pgn.test_replay import FILES, sample_games

SNIPPETS = (
    *mutants.SNIPPETS,
    *(b'[WhiteElo "9999999999"]', b'[TimeControl "1e9+x"]', b"1. e4 e5 2. Nf3 Nc6", b"\xbd"),
    *(b"[%clk 99999999999:61:61]", b"[%eval 1e5]", b"{[%eval ", b"{[%clk "),
)
SNIPPET_TEXTS = st.lists(st.sampled_from(SNIPPETS), max_size=60).map(b"".join)
RANDOM_BYTES = st.binary(max_size=400)

few_examples = settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def find_games(text: bytes) -> list[int]:
    """Return the offset of each game in a text."""
    data = np.frombuffer(text, dtype=np.uint8)
    starts = np.empty(len(text) // 2 + 2, dtype=np.int64)
    count = split(data, 0, len(text), True, Splitter().state, starts)
    return starts[:count].tolist()


@few_examples
@given(st.one_of(RANDOM_BYTES, SNIPPET_TEXTS))
def test_any_bytes_are_split_into_games_within_bounds(text: bytes) -> None:
    starts = find_games(text)
    assert starts == sorted(set(starts))
    assert all(0 <= start < len(text) for start in starts)
    before = text[: starts[0]] if starts else text
    for line in before.splitlines():  # only blank lines and comments precede the first game
        assert not line.strip(b" \t\x0b\x0c\x1c\x1d\x1e\x1f") or line[:1] in (b"%", b";")


@few_examples
@given(st.one_of(RANDOM_BYTES, SNIPPET_TEXTS))
@example(b"1. e4 {[%eval ")
@example(b"1. e4 {[%clk 1")
@example(b"1. e4 e8=")
@example(b"1. e4 0-")
@example(b"1/2-")
@example(b"N@")
@example(b"[")
@example(b"\xa0")
def test_any_bytes_are_replayed_within_bounds(text: bytes) -> None:
    # the bytes after the text, which must not be read, would complete a move, comment or result
    for tail in (b"", b"e5 } ] ) 1-0 e4 Q 1/2\n"):
        starts = np.array(find_games(text), dtype=np.int64)
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


def read_in_blocks(
    path: Path, block: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, bytes]]:
    """Return the offset and text of each game of a file that is read `block` bytes at a time."""
    with monkeypatch.context() as patch:
        for module in (source, chunks):
            patch.setattr(module, "BLOCK_BYTES", block)
        patch.setattr(chunks, "MAX_GAME_BYTES", 1 << 16)
        found = []
        for chunk in chunks.read_chunks([Source(str(path))], chunk_bytes):
            bounds = [*chunk.starts.tolist(), len(chunk.text)]
            for first, last in pairwise(bounds):
                found.append((chunk.offset + first, chunk.text[first:last]))
        return found


@few_examples
@given(text=SNIPPET_TEXTS, block=st.integers(1, 40), chunk_bytes=st.integers(1, 200))
@example(text=b'[Event "a"]\r\n\r\n1. e4\r\ne5 1-0\r\n', block=1, chunk_bytes=10)
@example(text=b"1. e4\re5 1-0\r\r1. d4 1-0\r", block=1, chunk_bytes=10)
def test_the_games_do_not_depend_on_block_and_chunk_size(
    text: bytes, block: int, chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = text.replace(b"\x00", b"") or b"\n"
    path = tmp_path / "dump.pgn"
    path.write_bytes(text)
    if text.startswith((b"\x28\xb5\x2f\xfd", b"\x1f\x8b", b"BZh")):
        return
    games = read_in_blocks(path, block, chunk_bytes, monkeypatch)
    starts = find_games(text)
    bounds = [*starts, len(text)]
    assert games == [(first, text[first:last]) for first, last in pairwise(bounds)]


def assert_mutants_agree(sources: list[bytes], count: int, path: Path) -> None:
    """Compare the pipeline with python-chess on the games of `count` mutants."""
    rng, statuses = random.Random(count), Counter[str]()
    for number in range(count):
        text = mutants.mutate(rng.choice(sources), rng)
        path.write_bytes(text)
        games = list(by_kernels.games(path)) if text else []
        assert not (found := mutants.find_differences(games)), f"mutant {number}: {found}\n{text!r}"
        statuses.update(game.status for game in games)
    print(dict(statuses.most_common()))  # noqa: T201 - for `pytest -s`


def test_mutants_of_games_are_read_as_by_python_chess(tmp_path: Path) -> None:
    assert_mutants_agree(mutants.write_pairs(40), 150, tmp_path / "mutant.pgn")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["generated", "real"])
def test_ten_thousand_mutants_are_read_as_by_python_chess(kind: str, tmp_path: Path) -> None:
    sources = mutants.write_pairs(400)
    if kind == "real":
        sources = [pair for name in FILES for pair in sample_games(name, 2 << 20, 40, together=2)]
    assert_mutants_agree(sources, 10_000, tmp_path / "mutant.pgn")
