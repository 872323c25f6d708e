"""Hostile input and faults: each case is refused, warned about or handled; silence fails a test."""
