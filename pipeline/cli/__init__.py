"""The command `fianchetto`."""
