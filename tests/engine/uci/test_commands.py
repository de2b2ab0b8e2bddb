"""The parts of the UCI engine that need no search: reading commands and options, writing scores,
following a game."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.board.position import FenError
from engine.evaluation.score import centipawns
from engine.player.boards import parse_playable
from engine.search.tree import tree_bytes
from engine.uci.commands import CommandError, Go, parse_go, parse_option, parse_position, split
from engine.uci.info import format_score, format_wdl
from engine.uci.options import ROWS, Options, describe_options, nodes_in, set_option
from engine.uci.position import GameState


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("isready", ("isready", "")),
        ("  go\tnodes 5 \r\n", ("go", "nodes 5")),
        ("joho debug on", ("debug", "on")),
        ("", ("", "")),
        ("   \n", ("", "")),
    ],
)
def test_a_command_is_found_behind_words_that_are_none(line: str, wanted: tuple[str, str]) -> None:
    assert split(line) == wanted


def test_a_line_without_a_command_is_refused_in_few_words() -> None:
    with pytest.raises(CommandError) as refused:
        split("\x00ärger " * 100_000)
    assert len(str(refused.value)) < 500
    assert str(refused.value).isascii()


def test_go_reads_every_limit() -> None:
    clocks = "wtime 1000 btime -20 winc 5 binc 6 movestogo 7"
    assert parse_go(
        f"searchmoves e2e4 d2d4 {clocks} depth 8 nodes 9 mate 2 movetime 11 ponder infinite"
    ) == Go(
        searchmoves=("e2e4", "d2d4"),
        wtime=1000,
        btime=-20,
        winc=5,
        binc=6,
        movestogo=7,
        depth=8,
        nodes=9,
        mate=2,
        movetime=11,
        ponder=True,
        infinite=True,
    )


@pytest.mark.parametrize("text", ["movetime", "movetime abc", "movetime nan", "movetime infinity"])
def test_a_number_that_cannot_be_read_is_0_so_that_an_answer_comes(text: str) -> None:
    go = parse_go(text)
    assert go.movetime == 0
    assert len(go.problems) == 1


def test_a_missing_number_does_not_eat_the_next_word() -> None:
    go = parse_go("nodes infinite wtime 5")
    assert (go.nodes, go.infinite, go.wtime) == (0, True, 5)


def test_numbers_are_kept_within_64_bits() -> None:
    assert parse_go("nodes 99999999999999999999999999").nodes == 2**63 - 1
    assert parse_go("wtime 1500.7").wtime == 1500


def test_limits_are_the_movers() -> None:
    go = parse_go("wtime 1000 btime 2000 winc 10 binc 20")
    assert (go.limits(white=True).left, go.limits(white=True).increment) == (1.0, 0.01)
    assert (go.limits(white=False).left, go.limits(white=False).increment) == (2.0, 0.02)


@given(st.text(max_size=200))
def test_nothing_that_is_said_breaks_the_reading_of_a_go(text: str) -> None:
    assert isinstance(parse_go(text), Go)


def test_position_reads_both_forms() -> None:
    assert parse_position("startpos") == (None, [])
    assert parse_position("startpos moves e2e4  e7e5") == (None, ["e2e4", "e7e5"])
    assert parse_position("fen 8/8/8/8/8/8/8/K1k5 w - - 0 1 moves a1a2") == (
        "8/8/8/8/8/8/8/K1k5 w - - 0 1",
        ["a1a2"],
    )
    assert parse_position("startpos moves") == (None, [])


@pytest.mark.parametrize("text", ["", "fen", "moves e2e4", "e2e4", "startpos2"])
def test_half_a_position_is_refused(text: str) -> None:
    with pytest.raises(CommandError):
        parse_position(text)


def test_option_names_and_values_may_hold_spaces() -> None:
    assert parse_option("name Move Overhead value 30") == ("Move Overhead", "30")
    assert parse_option("name Checkpoint value /my nets/value x") == (
        "Checkpoint",
        "/my nets/value x",
    )
    assert parse_option("name Clear Hash") == ("Clear Hash", None)
    with pytest.raises(CommandError):
        parse_option("Hash 3")


def test_every_option_is_a_row_and_can_be_set() -> None:
    assert tuple(ROWS) == Options.__slots__
    assert len(describe_options(Options())) == len(ROWS)
    given = {int: ("1", 1), bool: ("true", True), float: ("0.5", 0.5), str: ("/net", "/net")}
    for field, row in ROWS.items():
        text, value = given[type(getattr(Options(), field))]
        if row.choices:
            text, value = row.choices[-1].upper(), row.choices[-1]
        elif row.least > 1:
            text, value = str(row.most), row.most
        assert getattr(set_option(Options(), row.name.upper(), text), field) == value


def test_an_empty_string_is_written_as_the_protocol_wants_it() -> None:
    assert "option name Checkpoint type string default <empty>" in describe_options(Options())
    assert set_option(Options(checkpoint="/net"), "checkpoint", "<empty>").checkpoint == ""


@pytest.mark.parametrize("megabytes", [4, 64, 512, 65536])
def test_hash_bounds_the_tree_and_the_room_it_moves_through(megabytes: int) -> None:
    memory = megabytes << 20
    assert 2 * tree_bytes(nodes_in(memory)) <= memory
    assert 2 * tree_bytes(nodes_in(memory) + 2) > memory


@pytest.mark.parametrize(
    ("value", "wanted"), [(0.0, 0), (0.5, 89), (0.9, 546), (-0.9, -546), (1.0, 12780)]
)
def test_centipawns_are_lc0s(value: float, wanted: int) -> None:
    assert centipawns(value) == wanted


def test_centipawns_stay_finite_where_rounding_leaves_the_interval() -> None:
    assert centipawns(1.0000001) == centipawns(1.0)
    assert math.isfinite(centipawns(-1.0000001))


@pytest.mark.parametrize(
    ("plies", "wanted"),
    [(1, "mate 1"), (3, "mate 2"), (5, "mate 3"), (-2, "mate -1"), (-4, "mate -2"), (0, "cp 0")],
)
def test_mates_are_counted_in_moves(plies: int, wanted: str) -> None:
    assert format_score(0.0, plies) == wanted


@given(st.floats(-1, 1), st.floats(0, 1))
def test_win_draw_loss_are_thousandths(value: float, draw: float) -> None:
    win, even, loss = (int(word) for word in format_wdl(value, draw).split())
    assert win + even + loss == 1000
    assert min(win, even, loss) >= 0
    assert abs((win - loss) / 1000 - value) <= 0.002


def moves_of(game: GameState) -> list[str]:
    assert game.board is not None
    return [move.uci() for move in game.board.move_stack]


def test_a_game_told_again_and_longer_is_followed_move_by_move() -> None:
    game = GameState()
    words = ["e2e4", "e7e5", "g1f3", "b8c6", "e1e2", "g8f6"]
    for told in range(len(words) + 1):
        assert game.update(None, words[:told]) == ""
        assert moves_of(game) == words[:told]
    game.update(None, words[:2])
    assert moves_of(game) == words[:2], "and taken back"
    game.update("4k3/8/8/8/8/8/8/4K2R w K - 0 1", ["e1g1"])
    assert game.board is not None
    assert game.board.fen() == "4k3/8/8/8/8/8/8/5RK1 b - - 1 1"


@pytest.mark.parametrize("word", ["e2e5", "0000", "e7e8q", "xyz", "e2", "e2e4e5", "\x00"])
def test_an_illegal_move_refuses_the_position(word: str) -> None:
    game = GameState()
    with pytest.raises(CommandError, match="illegal move"):
        game.update(None, ["e2e4", word, "e7e5"])


def test_rights_of_chess960_are_refused_and_rights_without_a_rook_are_dropped_aloud() -> None:
    game = GameState()
    for rights in ("FBfb", "FB", "b"):
        with pytest.raises(FenError, match="Chess960"):
            game.update(f"nrbqkr1n/pppppppp/8/8/8/8/PPPPPPPP/NRBQKR1N w {rights} - 0 1", [])
    note = game.update("4k3/8/8/8/8/8/8/4K2R w KQ - 0 1", [])
    assert "castling" in note
    assert game.board is not None
    assert game.board.castling_xfen() == "K"
    for rights in ("HAha", "KQkq", "-"):
        assert game.update(f"r3k2r/8/8/8/8/8/8/R3K2R w {rights} - 0 1", []) == ""


@pytest.mark.parametrize(
    "fen",
    [
        "8/8/8/8/8/8/8/8 w - - 0 1",
        "4k3/8/8/8/8/8/8/8 w - - 0 1",
        "4k3/8/8/8/8/8/4r3/4K3 b - - 0 1",
        "4k3/8/8/8/8/8/8/PPPPKPPP w - - 0 1",
        "QQQQQQQQ/QQQQQQQQ/8/8/8/8/8/k1K5 w - - 0 1",
        "4k3/8/8/8/8/8/PPPPPPPP/QQ2K3 w - - 0 1",
        "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR x KQkq - 0 1",
        "rnbqkbnr/ppppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
        "not a position",
        "\x00" * 500,
    ],
)
def test_an_impossible_position_is_refused(fen: str) -> None:
    with pytest.raises(FenError):
        parse_playable(fen)
    with pytest.raises(FenError):
        GameState().update(fen, ["e7e5"])


def test_a_position_with_as_many_queens_as_pawns_allow_is_possible() -> None:
    board = parse_playable("R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1")
    assert board.legal_moves.count() == 218, "the most there are"
