"""Metadata on the pages of assets."""
