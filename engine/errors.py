"""Errors that a user can correct."""

from collections.abc import Iterable


class UserError(ValueError):
    """An error that the user can correct; its message says in a line what to do.

    The command line prints it and exits with 2; any other exception is a bug in this program.
    `remedy` is what to do on the command line; Dagster finds its own remedy by `code`.
    """

    code = ""

    def __init__(self, problem: str = "", *, remedy: str = "", code: str = "") -> None:
        super().__init__(f"{problem}: {remedy}" if remedy else problem)
        self.problem, self.remedy, self.code = problem, remedy, code or type(self).code


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an unknown-name message: the closest name, then all names."""
    from difflib import get_close_matches

    names = list(known)
    return (
        f"did you mean {get_close_matches(name, names, n=1, cutoff=0.0)[0]!r}? There are "
        f"{', '.join(names)}"
    )
