"""A UCI engine that plays the first legal move, except: `python rogue_engine.py HOW [FOLDER]`.

a1a1: always plays that move; nothing: answers `(none)`; crash: ends when asked for a move;
late-crash: ends at its third move; hang: never answers a `go`; mute: never answers at all; log:
writes the lines that it receives to FOLDER/received.
"""

import sys
from pathlib import Path

import chess


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    how, board, asked = sys.argv[1], chess.Board(), 0
    for line in sys.stdin:
        words = line.split()
        if how == "log":
            with Path(sys.argv[2], "received").open("a") as file:
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
            answer = {"a1a1": "a1a1", "nothing": "(none)"}.get(how) or next(
                iter(board.legal_moves)
            ).uci()
            say(f"info depth 1 score cp 13\nbestmove {answer}")
        elif words[0] == "quit":
            return


if __name__ == "__main__":
    main()
