"""Settings that a revision refuses, that have no effect, or that work against each other."""
