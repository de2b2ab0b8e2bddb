"""The one family of errors that a person caused and can mend."""


class UserError(ValueError):
    """Its message says in one line what was wrong and what to do about it.

    The command line prints it and exits 2; anything else that is raised is a bug of ours.
    """
