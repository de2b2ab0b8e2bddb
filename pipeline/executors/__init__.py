"""A function over many items: processes of this machine, or Ray."""
