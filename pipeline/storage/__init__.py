"""Local, web and object-store files: atomic publishing, locks, resumable streams."""
