"""Rungs from a first fit to an answer that is right."""
