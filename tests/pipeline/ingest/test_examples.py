"""Show the first dropped game of each reason with its place and text."""

from pathlib import Path

import pytest

from pipeline.cli.endings import describe_dataset
from pipeline.errors import DatasetError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline import datasets

CONFIG = IngestConfig(chunk_mib=1, min_elo=1, test_share=0.0, val_share=0.0)
RATED = '[WhiteElo "1500"]\n[BlackElo "1500"]\n'
GOOD = f'[Event "good"]\n{RATED}[Result "1-0"]\n\n1. e4 e5 2. Nf3 1-0\n\n'
DROPPED = {
    # reason: the game, and a part of the excerpt
    "illegal move": (
        f'[Event "a"]\n{RATED}[Result "1-0"]\n\n1. e4 {{so (far}} e5 2. d4 (2. f4 Nf6) Ke6 1-0\n\n',
        "Ke6",
    ),
    "bad FEN": (f'[Event "a"]\n{RATED}[FEN "no|thing"]\n\n1. e4 1-0\n\n', "no|thing"),
    "variant": (f'[Event "a"]\n{RATED}[Variant "Atomic"]\n\n1. e4 1-0\n\n', "Atomic"),
    "unfinished": (f'[Event "a"]\n{RATED}[Result "*"]\n\n1. e4 c5 *\n\n', "c5 *"),
    "no moves": (f'[Event "empty"]\n{RATED}[Result "1-0"]\n\n\n', "empty"),
    "filter: elo": ('[Event "unrated"]\n[Result "1-0"]\n\n1. e4 1-0\n\n', "unrated"),
}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dump of three chunks in which every reason occurs three times."""
    filler = "".join(
        datasets.random_game(seed).replace("[Result", f"{RATED}[Result") for seed in range(40)
    )
    dropped = "".join(text for text, _ in DROPPED.values())
    path = tmp_path_factory.mktemp("examples") / "games.pgn"
    filler *= 12
    path.write_text(GOOD + dropped + filler + GOOD + dropped + filler + dropped)
    assert path.stat().st_size > 2 << 20
    return path


def test_the_first_game_of_each_reason_is_shown_even_after_a_stop(
    dump: Path, tmp_path: Path
) -> None:
    made = ingest([str(dump)], tmp_path / "1", CONFIG, workers=1)
    text, card = dump.read_bytes(), (tmp_path / "1" / "CARD.md").read_text()
    output = describe_dataset(made, tmp_path / "1", False)
    assert made["examples"].keys() == made["games"]["dropped"].keys() == DROPPED.keys()
    for reason, (game, part) in DROPPED.items():
        example = made["examples"][reason]
        assert example["offset"] == text.index(game.encode())
        assert part in example["text"]
        assert f"{example['offset']:,}" in output
        assert f"{example['offset']:,}" in card
        assert example["text"] in output
    with pytest.raises(ValueError, match="stopped"):
        ingest([str(dump)], tmp_path / "2", CONFIG, workers=1, stop=lambda: True)
    assert ingest([str(dump)], tmp_path / "2", CONFIG, workers=1) == made
    assert (tmp_path / "2" / "CARD.md").read_text() == card


def test_excerpts_are_shortened_and_escaped(tmp_path: Path) -> None:
    moves = b"1. e4 \x1b[31m\x07 \xff\xe2\x80\xae {" + b"long | <b> " * 999 + b"} Ke4 1-0"
    game = b'[Event "\x1b]0;x\x07"]\n[Result "1-0"]\n\n' + moves + b"\n\n"
    (tmp_path / "games.pgn").write_bytes(game + GOOD.encode())
    made = ingest([str(tmp_path / "games.pgn")], tmp_path / "out", IngestConfig(), workers=1)
    (example,) = made["examples"].values()
    card = (tmp_path / "out" / "CARD.md").read_text()
    assert len(example["text"]) <= 60
    assert example["text"].isprintable()
    assert all(char == "\n" or char.isprintable() for char in card)
    assert "<b>" not in card


def test_the_error_for_no_positions_shows_the_first_game(tmp_path: Path) -> None:
    (tmp_path / "games.pgn").write_text(DROPPED["illegal move"][0])
    with pytest.raises(DatasetError, match=r"illegal move: 1.*byte 0 of games.pgn.*Ke6"):
        ingest([str(tmp_path / "games.pgn")], tmp_path / "deep" / "out", IngestConfig(), workers=1)
    assert not (tmp_path / "deep").exists()


def test_a_dropped_row_of_a_table_is_shown_with_its_line_number(tmp_path: Path) -> None:
    start = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
    (tmp_path / "best.csv").write_text(f"fen,best\n{start},e2e4\n{start},e2e5\n")
    made = ingest([str(tmp_path / "best.csv")], tmp_path / "out", IngestConfig(), workers=1)
    assert made["examples"]["illegal move"]["where"] == "line-3 of best.csv"
