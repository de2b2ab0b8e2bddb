"""Errors that a user can correct."""

from collections.abc import Iterable


class UserError(ValueError):
    """An error that the user can correct, with a one-line message that says how.

    The command line prints the message and exits with status 2. Any other exception is a bug.
    `remedy` says what to do on the command line. Dagster replaces it by its own remedy for `code`,
    if it has one.
    """

    code = ""
    """Kind of the error, for errors with a remedy in Dagster."""

    def __init__(self, problem: str = "", *, remedy: str = "", code: str = "") -> None:
        super().__init__(f"{problem}: {remedy}" if remedy else problem)
        self.problem, self.remedy, self.code = problem, remedy, code or type(self).code


def suggest_name(name: str, choices: Iterable[str]) -> str:
    """Return a hint for an unknown name: the most similar name, and the list of all `choices`."""
    from difflib import get_close_matches

    names = list(choices)
    closest = get_close_matches(name, names, n=1, cutoff=0.0)[0]
    return f"did you mean {closest!r}? Choose from {', '.join(names)}"
