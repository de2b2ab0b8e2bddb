"""Filters keep what python-chess's reading of tags and moves says, and count the rest."""

import io
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import pytest

from pipeline.dataset.hashing import splitmix64
from pipeline.errors import ConfigError, DatasetError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.filters import GAME_FILTERS, ROW_FILTERS, Filters, list_active
from pipeline.ingest.job import ingest
from tests.pipeline import datasets

Headers = Mapping[str, str]
CONFIG = IngestConfig(test_share=0.0, val_share=0.0)
EVENTS = ("Rated Blitz game", "Casual Rapid game", "rated Bullet tournament", "WCh 1972", "")
CONTROLS = (
    "15+0", "29+0", "30+0", "60+1", "179+0", "180+0", "120+9", "479+0", "480+0", "1499+0", "1500+0",
    "0+1", "-", "?", "40/9000", "", "10|5", "15 min", "5 3", "90+0.5", "1 in 5 days", "*180",
    "-180", "99999999999",
)  # fmt: skip
ENDS = ("Normal", "Time forfeit", "time forfeit", "Abandoned", "x won by resignation", "")
DATES = (
    "2013.01.31", "2020.02.29", "2020.03.01", "2024.12.31", "2020.??.??", "????.??.??",
    "2020.02.3", "2020.1?.01", "",
)  # fmt: skip
TITLED = ("", "", "GM", "IM", "BOT", "CM", "gm")
PLAYERS = ("ann", "bob", "lichess AI level 3", "")


def tagged(seed: int) -> str:
    """Return a random game with tags of every sort, right and wrong."""
    chance = random.Random(seed)
    head, _, moves = datasets.random_game(seed, 12 + seed % 9).partition("\n\n")
    if chance.random() < 0.3:
        moves = moves.replace("[%eval", "[%x")
    tags = {
        "Event": chance.choice(EVENTS), "White": chance.choice(PLAYERS),
        "Black": chance.choice(PLAYERS), "WhiteTitle": chance.choice(TITLED),
        "BlackTitle": chance.choice(TITLED), "TimeControl": chance.choice(CONTROLS),
        "Termination": chance.choice(ENDS),
        chance.choice(("UTCDate", "Date")): chance.choice(DATES),
    }  # fmt: skip
    kept = [line for line in head.split("\n") if line.split('"')[0].strip("[ ") not in tags]
    if chance.random() < 0.1:
        kept = [line for line in kept if "WhiteElo" not in line]
    lines = [
        f'[{name} "{value}"]' for name, value in tags.items() if value or name == "Event"
    ] + kept
    return "\n".join(lines) + f"\n\n{moves}"


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filters") / "games.pgn"
    path.write_text("".join(tagged(seed) for seed in range(240)))
    return path


@pytest.fixture(scope="module")
def read(dump: Path) -> list[chess.pgn.Game]:
    text = io.StringIO(dump.read_text())
    return list(iter(lambda: chess.pgn.read_game(text), None))


def elos(tags: Headers) -> tuple[int, int]:
    return tuple(int(tags.get(name, 0)) for name in ("WhiteElo", "BlackElo"))  # type: ignore[return-value]


def speed(tags: Headers) -> str:
    """Name Lichess's class of a time control, as scalachess's Speed does."""
    base, _, increment = tags.get("TimeControl", "").partition("+")
    if base == "-":
        return "correspondence"
    if not re.fullmatch(r"\d{1,5}(\+\d{1,3})?", tags.get("TimeControl", "")):
        return "unknown"
    seconds = int(base) + 40 * int(increment or 0)
    limits = {"ultrabullet": 29, "bullet": 179, "blitz": 479, "rapid": 1499}
    return next((name for name, most in limits.items() if seconds <= most), "classical")


def bot(tags: Headers) -> bool:
    named = any(tags.get(side, "").startswith("lichess AI") for side in ("White", "Black"))
    return "BOT" in (tags.get("WhiteTitle"), tags.get("BlackTitle")) or named


def date(tags: Headers) -> str:
    text = tags.get("UTCDate") or tags.get("Date", "")
    return text.replace(".", "-") if len(text) == 10 and "?" not in text else ""


FAST, SLOW = ("ultrabullet", "bullet"), ("blitz", "rapid", "classical", "correspondence")
FILTERS: dict[str, tuple[dict[str, Any], Callable[[Headers], bool]]] = {
    # reason, with a number where there are several: settings, and the games that they keep
    "elo": ({"min_elo": 1200}, lambda tags: min(elos(tags)) >= 1200),
    "elo 2": ({"max_elo": 2000}, lambda tags: max(elos(tags)) <= 2000),
    "casual": ({"rated_only": True}, lambda tags: tags["Event"].lower().startswith("rated")),
    "bot": ({"exclude_bots": True}, lambda tags: not bot(tags)),
    "speed": ({"speeds": FAST}, lambda tags: speed(tags) in FAST),
    "speed 2": ({"speeds": SLOW}, lambda tags: speed(tags) in SLOW),
    "termination": (
        {"terminations": ("normal", "time forfeit")},
        lambda tags: tags.get("Termination", "").lower() in ("normal", "time forfeit"),
    ),
    "date": (
        {"since": "2020-02-29", "until": "2020-12-31"},
        lambda tags: "2020-02-29" <= date(tags) <= "2020-12-31",
    ),
    "date 2": ({"until": "2020-12-31"}, lambda tags: "" < date(tags) <= "2020-12-31"),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_keeps_the_games_that_its_tags_say(
    name: str, dump: Path, read: list[chess.pgn.Game], tmp_path: Path
) -> None:
    changes, wanted = FILTERS[name]
    reason, keep = f"filter: {name.split()[0]}", [wanted(game.headers) for game in read]
    assert 10 < sum(keep) < 230
    manifest = ingest([str(dump)], tmp_path / "out", replace(CONFIG, **changes), workers=1)
    dropped = [game["dropped"] for game in datasets.games(tmp_path / "out")]
    assert dropped == [None if kept else reason for kept in keep]
    counts = {"read": 240, "used": sum(keep), "dropped": {reason: 240 - sum(keep)}}
    assert manifest["games"] == counts
    assert manifest["positions"]["total"] == sum(
        len(list(game.mainline_moves())) for game, kept in zip(read, keep, strict=True) if kept
    )


def test_several_filters_count_each_game_once(dump: Path, tmp_path: Path) -> None:
    config = replace(
        CONFIG, rated_only=True, exclude_bots=True, min_elo=900, sample=0.9, evals_only=True
    )
    games = ingest([str(dump)], tmp_path / "out", config, workers=1)["games"]
    assert games["read"] == games["used"] + sum(games["dropped"].values()) == 240
    assert set(games["dropped"]) == {
        "filter: elo", "filter: casual", "filter: bot", "filter: sample", "filter: no evals",
    }  # fmt: skip


@pytest.fixture(scope="module")
def whole(
    dump: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[int, int], dict[str, Any]]:
    """Return all rows without a filter, by game and ply."""
    out = tmp_path_factory.mktemp("whole")
    ingest([str(dump)], out, CONFIG, workers=1)
    return {(row["game"], row["ply"]): row for row in datasets.table(out).to_pylist()}


def rows_with(
    dump: Path, out: Path, **changes: Any
) -> tuple[dict[tuple[int, int], dict[str, Any]], dict[str, Any]]:
    manifest = ingest([str(dump)], out, replace(CONFIG, **changes), workers=1)
    return {(row["game"], row["ply"]): row for row in datasets.table(out).to_pylist()}, manifest


def test_rows_are_kept_by_ply_clock_and_eval(
    dump: Path, whole: dict[tuple[int, int], dict[str, Any]], tmp_path: Path
) -> None:
    rules: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = {
        "opening": ({"skip_plies": 6}, lambda row: row["ply"] >= 6),
        "clock": ({"min_clock": 200}, lambda row: row["clock"] is None or row["clock"] >= 200),
        "no eval": ({"evals_only": True}, lambda row: row["eval"] is not None),
    }
    for name, (changes, wanted) in rules.items():
        rows, manifest = rows_with(dump, tmp_path / name, **changes)
        expected = {place: row for place, row in whole.items() if wanted(row)}
        assert rows == expected
        lost: set[int] = set()
        if name == "no eval":
            lost = {game for game, _ in whole} - {game for game, _ in expected}
        dropped = sum(1 for (game, _), row in whole.items() if not wanted(row) and game not in lost)
        assert manifest["positions_dropped"] == {f"filter: {name}": dropped}
        assert manifest["games"]["dropped"] == ({"filter: no evals": len(lost)} if lost else {})
        assert manifest["positions"]["train"] == len(expected) > 500


def test_each_game_gives_at_most_so_many_positions_and_others_do_not_matter(
    dump: Path, whole: dict[tuple[int, int], dict[str, Any]], tmp_path: Path
) -> None:
    rows, manifest = rows_with(dump, tmp_path / "three", positions_per_game=3)
    more, _ = rows_with(dump, tmp_path / "five", positions_per_game=5)
    lengths = Counter(game for game, _ in whole)
    assert Counter(game for game, _ in rows) == {
        game: min(3, count) for game, count in lengths.items()
    }
    assert set(rows) < set(more)
    assert all(whole[place] == row for place, row in rows.items())
    assert manifest["positions_dropped"] == {"filter: positions per game": len(whole) - len(rows)}
    plies = np.array([ply / lengths[game] for game, ply in rows])
    assert 0.35 < plies.mean() < 0.6  # from everywhere in the game
    text = dump.read_text()
    (tmp_path / "half.pgn").write_text(text[text.index("[Event", len(text) // 2) :])
    half, manifest = rows_with(tmp_path / "half.pgn", tmp_path / "half", positions_per_game=3)
    behind = 240 - manifest["games"]["read"]
    assert {(game + behind, ply) for game, ply in half} == {
        place for place in rows if place[0] >= behind
    }


def test_a_sample_is_a_share_of_games_stable_and_nested(tmp_path: Path) -> None:
    path = datasets.dump(tmp_path / "games.pgn", 400, plies=4)
    tenth, half = (
        {game["site"] for game in datasets.games(tmp_path / str(share)) if game["dropped"] is None}
        for share in (0.1, 0.5)
        if ingest([str(path)], tmp_path / str(share), replace(CONFIG, sample=share), workers=1)
    )
    assert 20 < len(tenth) < 65
    assert 160 < len(half) < 240
    assert tenth < half
    # other tags, other line ends: the same games
    text = path.read_text().replace("[Site", '[Round "9"]\n[Site')
    (tmp_path / "other.pgn").write_bytes(text.rstrip().encode())
    for name, source, seed in (("other", "other.pgn", 0), ("seed", "games.pgn", 1)):
        config = replace(CONFIG, sample=0.1, chunk_mib=1, seed=seed)
        ingest([str(tmp_path / source)], tmp_path / name, config, workers=1)
        games = datasets.games(tmp_path / name)
        kept = {game["site"] for game in games if game["dropped"] is None}
        assert (kept == tenth) == (name == "other")


def test_a_filter_that_keeps_nothing_says_what_it_dropped(dump: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"240 games read \(filter: date: 240\)"):
        ingest([str(dump)], tmp_path / "a", replace(CONFIG, since="2030-01-01"), workers=1)
    with pytest.raises(DatasetError, match=r"240 games read \(filter: opening: \d+\)"):
        ingest([str(dump)], tmp_path / "b", replace(CONFIG, skip_plies=400), workers=1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"min_elo": 9, "max_elo": 8}, "max_elo 8 is below min_elo 9"),
        ({"speeds": ("fast",)}, "speeds: 'fast' is not one of ultrabullet, "),
        ({"since": "2024"}, "since must be a day like"),
        ({"since": "2024-02-30"}, "since must be a day like"),
        ({"since": "2024-02-02", "until": "2024-02-01"}, "until 2024-02-01 is before since"),
        ({"test_share": 0.6, "val_share": 0.5}, "the sum of test_share and val_share"),
    ],
)
def test_filters_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        IngestConfig(**wrong)


def test_mixing_is_splitmix64() -> None:
    # The first outputs of Vigna's splitmix64.c from the state 1234567, as published with Rosetta
    # Code's task "Splitmix64".
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    got = [int(splitmix64(np.array([1234567], np.uint64), turn)[0]) for turn in range(3)]
    assert got == wanted


def test_every_setting_is_a_row_of_the_table() -> None:
    rows = (*GAME_FILTERS, *ROW_FILTERS)
    assert {row.setting for row in rows} == {field.name for field in fields(Filters)}
    assert list_active(rows, Filters()) == list_active(rows, Filters(speeds=[])) == []  # type: ignore[arg-type]
