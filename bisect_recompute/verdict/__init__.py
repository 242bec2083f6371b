"""What shifted, in which commit, and why: pure decisions over measurements."""
