"""What probe results say about a commit: shifts, sides, and the journal that a run can be resumed from."""
