"""Imitations of a person whose habits the test has made: learned, measured on the newest games, and
resumed after a stop."""

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import pytest
import torch

from engine.progress import Tick
from model.card import CARD, read_player
from model.checkpoint import load, read_card, save_human_search
from pipeline.cli.commands.play import default_options
from pipeline.dataset.batches import Batches
from pipeline.errors import ConfigError, DatasetError, DumpError, FetchError, Stopped
from pipeline.imitation import tune
from pipeline.imitation.imitate import FEWEST, imitate
from pipeline.imitation.page import headline, imitation_text, write_imitation
from pipeline.samples.shipped import EMBEDDED
from pipeline.storage.job_folder import CHECKPOINT, JobFolder
from tests.conftest import REPOSITORY

NAME = 'O\'Hara, <b>Kim</b> "K"'
HABITS = ("g2g3", "f1g2", "d2d3", "g1f3", "g7g6", "f8g7", "d7d6", "g8f6")
"""The person's first moves, in this order where they are legal; the others are random."""
GAMES, PLIES = 60, 28


def play(seed: int) -> chess.pgn.Game:
    """Return a game of the person against somebody, on a day of its own; younger games have higher
    ratings."""
    chance, board = random.Random(seed), chess.Board()
    mine = chance.random() < 0.5
    moves = []
    while not board.is_game_over() and (ply := board.ply()) < PLIES:
        legal = list(board.legal_moves)
        habit = chess.Move.from_uci(HABITS[min(3, ply // 2) + (0 if mine else 4)])
        moves.append(
            habit if board.turn == mine and habit in legal and ply < 8 else chance.choice(legal)
        )
        board.push(moves[-1])
    game = chess.pgn.Game()
    tags = {
        "White": NAME if mine else "Foe",
        "Black": "Foe" if mine else NAME,
        "Result": chance.choice(("1-0", "0-1")),
    }
    tags |= {"Date": f"2024.{1 + seed // 28:02}.{1 + seed % 28:02}"} | dict.fromkeys(
        ("WhiteElo", "BlackElo"), f"{1500 + seed}"
    )
    for name, value in tags.items():
        game.headers[name] = value
    game.add_line(moves)
    return game


def write(games: Iterable[chess.pgn.Game]) -> str:
    return "\n\n".join(str(game).replace(NAME, NAME.replace('"', '\\"')) for game in games) + "\n"


@pytest.fixture(scope="module", autouse=True)
def _two_folds() -> Iterator[None]:
    """Train two networks, not four, to save time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "FOLDS", 2)
        yield


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("games") / "games.pgn"
    order = random.Random(0).sample(range(GAMES), GAMES)  # the newest are not the last
    path.write_text(write(play(seed) for seed in order))
    return path


@pytest.fixture(scope="module")
def made(games: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Imitate the person in one go."""
    out = tmp_path_factory.mktemp("made") / "network"
    return out, imitate([str(games)], [NAME], out)


def newest(count: int) -> list[chess.pgn.Game]:
    return [play(seed) for seed in range(GAMES - count, GAMES)]


def test_the_person_is_learned(made: tuple[Path, dict[str, Any]]) -> None:
    _, result = made
    base, imitation = result["networks"]
    assert imitation["all"]["games"] == base["all"]["games"] == GAMES // 10
    assert base["all"]["top1_difference"] == 0
    assert imitation["all"]["top1_difference"] > 0
    first = [row["moves"][0] for row in result["openings"] if chess.Board(row["fen"]).ply() < 2]
    assert first
    assert all(
        move["san"] in ("g3", "g6") and move["imitation"] > 1.3 * move["base"] for move in first
    )
    assert imitation["all"]["cross_entropy_difference"] < -0.05
    chosen = result["chosen"]
    assert chosen["share"] > 0
    assert chosen["games"] == GAMES - GAMES // 10  # each is unseen by one of the trained networks
    assert headline(result).startswith(
        "Against the network that it started from, the imitation of O'Hara"
    )


def test_the_newest_games_are_held_out_and_only_the_persons_moves_are_rows(
    made: tuple[Path, dict[str, Any]],
) -> None:
    out, result = made
    held, splits = newest(GAMES // 10), {}
    assert result["held_out"] == held[0].headers["Date"]
    for split in ("train", "val", "latest"):
        rows = Batches(
            [out / "imitation" / "training_set"],
            split,
            batch_size=4096,
            columns=("game", "ply", "elo"),
        )
        splits[split] = [
            np.concatenate(column)
            for column in zip(*(b.values() for b in rows.read_rows()), strict=True)
        ]
    assert sorted(set(splits["latest"][2].tolist())) == [
        int(game.headers["WhiteElo"]) for game in held
    ]
    assert max(splits["train"][2].max(), splits["val"][2].max()) < int(held[0].headers["WhiteElo"])
    moves = sum(
        (move.ply() % 2 == 1) == (game.headers["White"] == NAME)
        for game in newest(GAMES)
        for move in game.mainline()
    )
    assert sum(len(columns[0]) for columns in splits.values()) == moves
    for games, plies, _ in splits.values():
        assert all(
            len(set((plies[games == game] % 2).tolist())) == 1 for game in set(games.tolist())
        )


def test_the_card_names_the_person_and_the_engine_plays_like_them(
    made: tuple[Path, dict[str, Any]],
) -> None:
    out, _ = made
    ratings = [int(game.headers["WhiteElo"]) for game in newest(GAMES // 10)]
    found = read_player(out)
    assert found is not None
    assert (found.names, found.rating) == ([NAME], int(np.median(ratings)))
    options, like = default_options(out)
    assert (options.style, options.temperature, options.rating) == ("policy", 1.0, found.rating)
    assert repr(NAME) in like
    assert "message" not in read_card(out)  # of a network that was trained, not of the mixture
    assert default_options(REPOSITORY / "datasets" / "embedded")[0].rating == 0
    assert read_player(out / "imitation") is None


def test_the_engine_shortens_names_that_no_gui_has_room_for(tmp_path: Path) -> None:
    player = {"names": ["x" * 500, "\n"], "rating": 1500, "games": 100}
    (tmp_path / "checkpoint.json").write_text(json.dumps({"data": {"player": player}}))
    _, like = default_options(tmp_path)
    assert re.fullmatch(r", like 'x{99}\.\.\. at 1500", like)


def test_the_openings_are_counted_as_python_chess_counts_them(
    made: tuple[Path, dict[str, Any]],
) -> None:
    _, result = made
    counts: dict[str, Counter[str]] = {}
    for game in newest(GAMES // 10):
        board = game.board()
        for move in game.mainline_moves():
            if (game.headers["White"] == NAME) == board.turn and board.ply() < 16:
                counts.setdefault(board.epd(), Counter())[board.san(move)] += 1
            board.push(move)
    for row in result["openings"]:
        found = counts[chess.Board(row["fen"]).epd()]
        assert row["times"] == found.total()
        assert {move["san"]: round(move["played"] * row["times"]) for move in row["moves"]} == dict(
            found.most_common(3)
        )
        assert all(0 <= move[name] <= 1 for move in row["moves"] for name in ("imitation", "base"))
    assert result["openings"][0]["times"] == max(found.total() for found in counts.values())
    assert all(row["rank"] > 1 and row["played"] != row["chosen"] for row in result["boards"])


def test_the_page_shows_names_as_text(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, result = made
    page = (out / "report" / "report.html").read_text()
    assert "<b>Kim</b>" not in page
    assert "O&#39;Hara, &lt;b&gt;Kim&lt;/b&gt;" in page
    assert "<script" not in page
    assert json.loads((out / "report" / "report.json").read_text())["player"]["names"] == [NAME]
    hostile = {
        **result,
        "player": {**result["player"], "names": ["\x1b]0;x\x07", "</style><script>"]},
    }
    write_imitation(hostile, tmp_path / "hostile")
    assert "\x1b" not in imitation_text(hostile)
    assert not re.search(r"<script|\x1b", (tmp_path / "hostile" / "report.html").read_text())


def test_games_that_improve_nothing_leave_the_base_and_say_so(
    made: tuple[Path, dict[str, Any]], games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = made
    # what is trained is not trained again
    shutil.copytree(out / "imitation", tmp_path / "out" / "imitation")
    JobFolder(tmp_path / "out", CHECKPOINT, ConfigError).claim({"player": [NAME]})
    monkeypatch.setattr(tune, "choose_share", lambda tried: 0.0)
    result = imitate([str(games)], [NAME], tmp_path / "out")
    base, same = load(EMBEDDED)[0].state_dict(), load(tmp_path / "out")[0].state_dict()
    assert all(torch.equal(base[name], same[name]) for name in base)
    assert result["networks"][1]["all"]["top1_difference"] == 0
    first = imitation_text(result).partition(". ")[0]
    assert "did not improve the network" in first
    assert first in (tmp_path / "out" / "report" / "report.txt").read_text()
    assert read_player(tmp_path / "out") is not None


def test_a_date_of_no_calendar_and_no_validation_game_end_in_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.imitation.imitate.VALIDATION_SHARE", 0.0)
    some = [play(seed) for seed in range(24)]
    for game in some[-2:]:
        game.headers["Date"] = "2024.02.30"
    (tmp_path / "some.pgn").write_text(write(some))
    result = imitate([str(tmp_path / "some.pgn")], [NAME], tmp_path / "out")
    assert (result["held_out"], result["chosen"]["games"]) == ("2024.02.30", 22)


def test_another_network_is_not_replaced(
    made: tuple[Path, dict[str, Any]], games: Path, tmp_path: Path
) -> None:
    shutil.copytree(EMBEDDED, tmp_path / "mine")
    before = (tmp_path / "mine" / CARD).read_bytes()
    with pytest.raises(ConfigError, match="another network"):
        imitate([str(games)], [NAME], tmp_path / "mine")
    assert (tmp_path / "mine" / CARD).read_bytes() == before


def test_the_same_command_again_keeps_what_was_added_to_the_network(
    made: tuple[Path, dict[str, Any]], games: Path, tmp_path: Path
) -> None:
    out, whole = made
    shutil.copytree(out, tmp_path / "out")
    entry = read_card(EMBEDDED)["human_search"]
    save_human_search(tmp_path / "out", read_card(out)["files"]["weights"]["sha256"], entry)
    assert imitate([str(games)], [NAME], tmp_path / "out") == whole
    assert read_card(tmp_path / "out")["human_search"] == entry


def test_stopped_anywhere_it_continues_to_the_same_network(
    made: tuple[Path, dict[str, Any]], games: Path, tmp_path: Path
) -> None:
    out, whole = made

    def polls(most: int) -> Iterator[bool]:
        yield from [False] * most
        while True:
            yield True

    stages, stopped = set(), 0
    for most in (3, 9, 40):
        answers, last = polls(most), [""]

        def note(tick: Tick, last: list[str] = last) -> None:
            last[0] = tick.stage

        try:
            result = imitate(
                [str(games)],
                [NAME],
                tmp_path / "out",
                progress=note,
                stop=lambda a=answers: next(a),
            )
        except Stopped:
            stopped += 1
        stages.add(last[0])
    assert stopped >= 2
    result = imitate([str(games)], [NAME], tmp_path / "out")
    assert result == {**whole, "seconds": result["seconds"]}
    cards = [read_card(folder)["files"]["weights"] for folder in (out, tmp_path / "out")]
    assert cards[0] == cards[1]


def test_what_cannot_be_imitated_is_refused(games: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.pgn"
    few.write_text("\n\n".join(str(play(seed)) for seed in range(FEWEST - 1)) + "\n")
    undated = tmp_path / "undated.pgn"
    undated.write_text(re.sub(r'\[Date "[^"]*"\]', '[Date "????.??.??"]', games.read_text()))
    with pytest.raises(DatasetError, match=f"{FEWEST - 1} games of 'Foe' are too few"):
        imitate([str(few)], ["Foe"], tmp_path / "a")
    with pytest.raises(
        DatasetError, match="the newest games cannot be held out: its games have no dates"
    ):
        imitate([str(undated)], ["Foe"], tmp_path / "b")
    with pytest.raises(DatasetError, match=r"the most frequent are 'Foe' \(60\)"):
        imitate([str(games)], ["foe"], tmp_path / "c")
    with pytest.raises(ConfigError, match="name the player"):
        imitate([str(games)], [], tmp_path / "d")
    with pytest.raises(DumpError):
        imitate([str(tmp_path / "missing.pgn")], ["Foe"], tmp_path / "f")
    assert not [name for name in "abcdf" if (tmp_path / name).exists()]
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "mine.txt").write_text("")
    with pytest.raises(ConfigError, match=r"holds 'mine\.txt'"):
        imitate([str(games)], ["Foe"], tmp_path / "e")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), FetchError("no answer")])
def test_what_was_ingested_stays_where_the_disk_or_the_network_fails(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(sources: Any, out: Path, *others: Any, **options: Any) -> None:
        out.mkdir(parents=True)
        (out / "part.json").write_text("{}")
        raise error

    monkeypatch.setattr("pipeline.imitation.imitate.ingest", fail)
    with pytest.raises((ConfigError, FetchError), match=re.escape(str(error.args[-1]))):
        imitate(["games.pgn"], [NAME], tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").rglob("part.json")] == ["part.json"]


EXPORT = REPOSITORY.parent / "shared" / "data" / "pgn" / "lichess_export_2024-05_blitz.pgn"


@pytest.mark.slow
@pytest.mark.skipif(not EXPORT.exists(), reason="needs a player's real export in ../shared/data")
def test_a_real_player_is_imitated(tmp_path: Path) -> None:
    text = re.split(r"(?=^\[Event )", EXPORT.read_text(), flags=re.MULTILINE)[1:]
    (tmp_path / "some.pgn").write_text("".join(text[::4]))
    result = imitate([str(tmp_path / "some.pgn")], ["clinares"], tmp_path / "out")
    imitation = result["networks"][1]
    assert imitation["all"]["top1_low"] > 0.03
    assert imitation["late"]["cross_entropy_difference"] < 0
    shutil.rmtree(tmp_path / "out" / "report")
    again = imitate(
        [str(tmp_path / "some.pgn")],
        ["clinares"],
        tmp_path / "out",
        stranger=REPOSITORY / "datasets" / "embedded",
    )
    assert [row["name"] for row in again["networks"]] == ["base", "imitation", "stranger"]
    assert again["networks"][2]["all"]["top1_difference"] == 0
