"""Networks: the table of presets, and the modules that they are built from."""
