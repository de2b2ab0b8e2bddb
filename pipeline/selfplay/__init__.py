"""Make datasets of searched positions, from games of self-play or from other datasets."""
