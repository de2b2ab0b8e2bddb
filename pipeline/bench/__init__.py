"""What `fianchetto bench` measures."""
