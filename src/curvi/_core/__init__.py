"""Pytree arithmetic, outcome codes, errors, validation of input, and what compiling needs."""
