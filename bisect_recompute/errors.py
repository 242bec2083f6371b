"""Errors that end a command with one line and a documented exit code."""


class UsageError(Exception):
    """The call was wrong (exit code 2). The message is one line: what is wrong and how to mend it."""


class EndpointError(Exception):
    """An endpoint of the range cannot be probed (exit code 5). The message names the endpoint and the reason."""
