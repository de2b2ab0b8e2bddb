"""Parts of the UCI engine without a search: commands, options, scores, the game."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.board.position import FenError
from engine.evaluation.evaluator import to_centipawns
from engine.player.boards import parse_playable
from engine.search.tree import tree_bytes
from engine.uci.commands import (
    CommandError,
    GameState,
    Go,
    parse_go,
    parse_option,
    parse_position,
    split_command,
)
from engine.uci.job import format_score, format_wdl
from engine.uci.options import OPTION_SPECS, Options, count_nodes_in, describe_options, set_option

HUGE = 2**63 - 1
PARSED = [
    (split_command, "isready", ("isready", "")),
    (split_command, "  go\tnodes 5 \r\n", ("go", "nodes 5")),
    (split_command, "joho debug on", ("debug", "on")),
    (split_command, "   \n", ("", "")),
    (
        parse_go,
        "searchmoves e2e4 d2d4 wtime 1000 btime -20 winc 5 binc 6 movestogo 7",
        Go(searchmoves=("e2e4", "d2d4"), wtime=1000, btime=-20, winc=5, binc=6, movestogo=7),
    ),
    (parse_go, "depth 8 mate 2 ponder", Go(depth=8, mate=2, ponder=True)),
    (parse_go, "movetime 11.7", Go(movetime=11)),
    # an invalid number is read as 0, so that the answer is immediate
    *((parse_go, text, Go(movetime=0)) for text in ("movetime", "movetime abc", "movetime nan")),
    (parse_go, "nodes infinite wtime 5", Go(nodes=0, infinite=True, wtime=5)),
    (parse_go, "nodes 99999999999999999999999999", Go(nodes=HUGE)),
    (parse_position, "startpos", (None, [])),
    (parse_position, "startpos moves", (None, [])),
    (parse_position, "startpos moves e2e4  e7e5", (None, ["e2e4", "e7e5"])),
    (parse_position, "fen 8/8/8/8 w - - 0 1 moves a1a2", ("8/8/8/8 w - - 0 1", ["a1a2"])),
    (parse_option, "name Move Overhead value 30", ("Move Overhead", "30")),
    (parse_option, "name Checkpoint value /my nets/value x", ("Checkpoint", "/my nets/value x")),
    (parse_option, "name Clear Hash", ("Clear Hash", None)),
    *((parse_position, text, None) for text in ("", "fen", "moves e2e4", "startpos2")),
    (parse_option, "Hash 3", None),
    (split_command, "\x00ärger " * 100_000, None),
]


@pytest.mark.parametrize(
    ("parse", "text", "wanted"), PARSED, ids=lambda part: getattr(part, "__name__", str(part)[:40])
)
def test_commands_are_parsed_or_rejected(parse, text: str, wanted: object) -> None:
    if wanted is not None:
        assert parse(text) == wanted
        return
    with pytest.raises(CommandError) as caught:
        parse(text)
    assert len(str(caught.value)) < 500
    assert str(caught.value).isascii()


NAMES = {
    *("Threads", "Hash", "MultiPV", "Ponder", "UCI_ShowWDL", "Style", "Rating", "Game Speed"),
    *("UCI_LimitStrength", "UCI_Elo", "Simulations", "CPuct", "Temperature", "Seed", "Leaves"),
    *("Move Overhead", "Checkpoint"),
}
"""Names of all options; GUIs store users' values by name."""
WORDS = ("nodes", "wtime", "depth", "infinite", "ponder", "searchmoves", "e2e4", "0000", "-1", "")
WORDS += ("1e999", "nan", "9" * 99, "\N{ARABIC-INDIC DIGIT THREE}", "\0", "\ud800", "movetime\t")


@settings(max_examples=30)
@given(st.lists(st.sampled_from(WORDS), max_size=12))
def test_any_words_after_go_are_parsed(words: list[str]) -> None:
    assert isinstance(parse_go(" ".join(words)), Go)


def test_every_option_is_described_and_can_be_set() -> None:
    assert tuple(OPTION_SPECS) == Options.__slots__
    assert {spec.name for spec in OPTION_SPECS.values()} == NAMES
    assert len(describe_options(Options())) == len(OPTION_SPECS)
    values = {int: ("1", 1), bool: ("true", True), float: ("0.5", 0.5), str: ("/net", "/net")}
    for field, row in OPTION_SPECS.items():
        text, value = values[type(getattr(Options(), field))]
        if row.choices:
            text, value = row.choices[-1].upper(), row.choices[-1]
        elif row.minimum > 1:
            text, value = str(row.maximum), row.maximum
        assert getattr(set_option(Options(), row.name.upper(), text), field) == value
    assert "option name Checkpoint type string default <empty>" in describe_options(Options())
    assert set_option(Options(checkpoint="/net"), "checkpoint", "<empty>").checkpoint == ""


@pytest.mark.parametrize("megabytes", [4, 512, 65536])
def test_hash_bounds_the_tree_and_its_scratch_memory(megabytes: int) -> None:
    memory = megabytes << 20
    assert 2 * tree_bytes(count_nodes_in(memory)) <= memory
    assert 2 * tree_bytes(count_nodes_in(memory) + 2) > memory


def test_scores_are_the_centipawns_of_lc0_or_mates_in_moves() -> None:
    for value, wanted in ((0.0, 0), (0.5, 89), (-0.9, -546), (1.0, 12780), (1.0000001, 12780)):
        assert to_centipawns(value) == wanted
    mates = {1: "mate 1", 3: "mate 2", 5: "mate 3", -2: "mate -1", -4: "mate -2", 0: "cp 0"}
    assert {plies: format_score(0.0, plies) for plies in mates} == mates


@settings(max_examples=30)
@given(st.floats(-1, 1), st.floats(0, 1))
def test_win_draw_and_loss_are_permille(value: float, draw: float) -> None:
    win, even, loss = (int(word) for word in format_wdl(value, draw).split())
    assert win + even + loss == 1000
    assert min(win, even, loss) >= 0
    assert abs((win - loss) / 1000 - value) <= 0.002


def test_a_repeated_longer_position_adds_only_its_new_moves() -> None:
    game = GameState()
    words = ["e2e4", "e7e5", "g1f3", "b8c6", "e1e2", "g8f6"]
    for length in (0, 1, 2, 5, 6, 2):
        assert game.update(None, words[:length]) == ""
        assert game.board is not None
        assert [move.uci() for move in game.board.move_stack] == words[:length]
    game.update("4k3/8/8/8/8/8/8/4K2R w K - 0 1", ["e1g1"])
    assert game.board.fen() == "4k3/8/8/8/8/8/8/5RK1 b - - 1 1"


def test_chess960_rights_are_errors_but_rights_without_a_rook_are_dropped_with_a_note() -> None:
    game = GameState()
    for rights in ("FBfb", "FB", "b"):
        with pytest.raises(FenError, match="Chess960"):
            game.update(f"nrbqkr1n/pppppppp/8/8/8/8/PPPPPPPP/NRBQKR1N w {rights} - 0 1", [])
    assert "castling" in game.update("4k3/8/8/8/8/8/8/4K2R w KQ - 0 1", [])
    assert game.board is not None
    assert game.board.castling_xfen() == "K"
    for rights in ("HAha", "KQkq", "-"):
        assert game.update(f"r3k2r/8/8/8/8/8/8/R3K2R w {rights} - 0 1", []) == ""


def test_all_pawns_may_be_promoted() -> None:
    board = parse_playable("R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1")
    assert board.legal_moves.count() == 218
