"""On a clock the engine searches: whatever else the `go` says, a fresh tree gets as much as
`movetime` would give it."""

import chess
import pytest

from engine.evaluation.handwritten import evaluate
from tests.engine.uci.uci_talk import Counting, Talk, last_info

ROUND = 0.002
"""Seconds of one evaluation, on a clock that nothing else moves on."""
ONE_MOVE = "7k/8/8/8/8/8/r7/7K w - - 0 1"
QUIET = "position startpos moves e2e4 e7e5 g1f3 b8c6"
CLOCK = "wtime 8000 btime 8000"
# Anderssen - Kieseritzky, London 1851: eleven moves of White with many choices each.
GAME = (
    "e4 e5 f4 exf4 Bc4 Qh4+ Kf1 b5 Bxb5 Nf6 Nf3 Qh6 d3 Nh5 Nh4 Qg5 Nf5 c6 g4 Nf6 Rg1 cxb5 h4 "
    "Qg6 h5 Qg5 Qf3 Ng8 Bxf4 Qf6"
)


def effort(lines: list[str]) -> tuple[int, int]:
    """Give nodes and milliseconds of what was answered."""
    info = last_info(lines)
    return int(info["nodes"]), int(info["time"])


def at_move_time(talk: Talk, position: str, milliseconds: int) -> int:
    """Give the nodes of a fresh tree in so much time."""
    # 20 ms are the overhead
    return effort(talk.ask("ucinewgame", position, f"go movetime {milliseconds + 20}"))[0]


@pytest.mark.parametrize("position", ["position startpos", QUIET])
@pytest.mark.parametrize(
    "go",
    [
        f"go {CLOCK}",
        f"go {CLOCK} winc 100 binc 100",
        f"go {CLOCK} movestogo 40",
        "go wtime 400 btime 400 movestogo 1",
        f"go {CLOCK} depth 30",
        f"go {CLOCK} mate 3",
        "go btime 8000",
    ],
)
def test_a_fresh_tree_is_searched_on_a_clock(position: str, go: str) -> None:
    with Talk(Counting(ROUND)) as talk:
        nodes, milliseconds = effort(talk.ask("ucinewgame", position, go))
        assert nodes >= at_move_time(talk, position, milliseconds) / 2
        assert nodes >= 20


@pytest.mark.parametrize(("increment", "moves_to_go"), [(0.06, None), (0.0, 40)])
def test_the_moves_of_a_game_on_a_clock_are_searched_as_in_a_time_a_move(
    increment: float, moves_to_go: int | None
) -> None:
    counting = Counting(ROUND, evaluate)
    board, left, asked = chess.Board(), 6.0, []
    with Talk(counting) as talk:
        for san in GAME.split():
            if board.turn == chess.WHITE:
                position = " ".join(
                    ["position startpos moves", *(move.uci() for move in board.move_stack)]
                )
                go = (
                    f"go wtime {1000 * left:.0f} btime 6000 winc {1000 * increment:.0f} binc "
                    f"{1000 * increment:.0f}"
                )
                go += "" if moves_to_go is None else f" movestogo {moves_to_go - len(asked)}"
                begun = counting.clock.now
                info = last_info(talk.ask(position, go))
                seconds = counting.clock.now - begun
                assert seconds < left
                left += increment - seconds
                free = board.legal_moves.count() > 1 and not info["score"].startswith("mate")
                asked.append((position, seconds, int(info["nodes"]), free))
            board.push_san(san)
        talk.say("ucinewgame")
        wanted = [  # 20 ms are the overhead
            effort(talk.ask(position, f"go movetime {1000 * seconds + 20:.0f}"))[0]
            for position, seconds, _, _ in asked
        ]
    assert len(asked) == 15
    assert sum(nodes for _, _, nodes, _ in asked) >= sum(wanted) / 2
    assert min(nodes for _, _, nodes, free in asked if free) >= 50


def test_several_lines_are_searched_and_shown_on_a_clock() -> None:
    with Talk(Counting(ROUND)) as talk:
        talk.say("setoption name MultiPV value 3")
        lines = talk.ask(QUIET, f"go {CLOCK}")
        nodes, milliseconds = effort(lines)
        assert {f"multipv {place}" in " ".join(lines) for place in (1, 2, 3)} == {True}
        assert nodes >= at_move_time(talk, QUIET, milliseconds) / 2


def test_pondering_searches_and_so_does_the_time_after_the_hit() -> None:
    counting = Counting(ROUND)
    with Talk(counting) as talk:
        counting.hold_after(150)  # 0.3 s
        talk.say(QUIET, f"go ponder {CLOCK}")
        counting.wait_until_held()
        talk.sync("ponderhit")
        counting.release()
        assert effort(talk.until("bestmove"))[0] >= at_move_time(talk, QUIET, 300) / 2
        talk.say("ucinewgame", QUIET, f"go ponder {CLOCK}", "ponderhit")
        nodes, milliseconds = effort(talk.until("bestmove"))
        assert nodes >= max(at_move_time(talk, QUIET, milliseconds) / 2, 20)


def test_the_only_move_is_answered_at_once_with_a_score() -> None:
    with Talk(Counting(ROUND)) as talk:
        lines = talk.ask(f"position fen {ONE_MOVE}", "go wtime 600000 btime 600000")
        nodes, milliseconds = effort(lines)
        assert (lines[-1].split()[1], nodes) == ("h1g1", 1)
        assert milliseconds < 1000
        assert last_info(lines)["score"].startswith("cp ")


@pytest.mark.parametrize(
    "go", ["go depth 3 searchmoves a2a3 h2h4", "go mate 2 searchmoves a2a3 h2h4 nodes 40"]
)
def test_some_of_the_moves_are_searched_although_the_tree_of_all_is_deep_enough(go: str) -> None:
    """The position that was searched before is the same; what its tree says is not about these
    moves."""
    with Talk() as talk:
        talk.ask(QUIET, "go nodes 3000")
        info = last_info(talk.ask(QUIET, go))
        assert info["pv"].split()[0] in ("a2a3", "h2h4")
        assert int(info["nodes"]) > 2


@pytest.mark.parametrize("go", ["go depth 3", "go mate 1"])
def test_depth_and_mate_are_searched_on_a_fresh_tree(go: str) -> None:
    with Talk() as talk:
        talk.say("position startpos", f"{go} nodes 50")
        nodes, _ = effort(talk.until("bestmove"))
        assert nodes >= 3
