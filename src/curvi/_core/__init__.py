"""Types, pytree arithmetic, outcome codes, errors, and the gate that input passes."""
