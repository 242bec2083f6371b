"""What commits do to recompute behaviour in source code: defaults, labels, validation, checkpoint sites."""
