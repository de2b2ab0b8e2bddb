"""The one family of errors that a person caused and can mend."""


class UserError(ValueError):
    """Say what was wrong and what to do about it, in one line that a person reads.

    The command line prints it and exits 2; anything else that is raised is a bug of ours.
    """
