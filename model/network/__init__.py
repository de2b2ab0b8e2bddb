"""Networks: the table of presets, and the parts that they are built from."""
