"""The paper: its formulas as references, its bounds on variances, its experiments."""
