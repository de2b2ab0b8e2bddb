"""Positions of datasets searched by a checkpoint: a dataset of what its search knows better than it."""
