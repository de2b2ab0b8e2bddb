"""A UCI engine that misbehaves as it is told: `python rogue_engine.py HOW [FOLDER]`; else it plays
the first legal move.

a1a1: that move, always; nothing: `(none)`; crash: ends when asked to move; late-crash: ends in its
third move of a process; hang: never answers; mute: does not even speak UCI; slow: 0.3 s a move;
gossip: writes what it is told into FOLDER/said.
"""

import sys
import time

import chess


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    how, board, asked = sys.argv[1], chess.Board(), 0
    for line in sys.stdin:
        words = line.split()
        if how == "gossip":
            with open(f"{sys.argv[2]}/said", "a") as file:  # noqa: PTH123 - this script stands alone
                file.write(line)
        if how == "mute" or not words:
            continue
        if words[0] == "uci":
            say("id name Rogue\noption name Manners type spin default 1 min 0 max 9\nuciok")
        elif words[0] == "isready":
            say("readyok")
        elif words[0] == "position":
            start = words.index("moves") if "moves" in words else len(words)
            board = (
                chess.Board() if words[1] == "startpos" else chess.Board(" ".join(words[2:start]))
            )
            for move in words[start + 1 :]:
                board.push_uci(move)
        elif words[0] == "go":
            asked += 1
            if how == "crash" or (how == "late-crash" and asked == 3):
                sys.exit(3)
            if how == "hang":
                continue
            if how == "slow":
                time.sleep(0.3)
            answer = {"a1a1": "a1a1", "nothing": "(none)"}.get(how) or next(
                iter(board.legal_moves)
            ).uci()
            say(f"info depth 1 score cp 13\nbestmove {answer}")
        elif words[0] == "quit":
            return


if __name__ == "__main__":
    main()
