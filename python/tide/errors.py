"""Making tide.Error in Python, with the status that C would give."""

from tide._tide import Error

INVALID = "TIDE_ERR_INVALID"
MEMORY = "TIDE_ERR_MEMORY"
PEER = "TIDE_ERR_PEER"
MISMATCH = "TIDE_ERR_MISMATCH"
UNSUPPORTED = "TIDE_ERR_UNSUPPORTED"


def make_error(status: str, text: str) -> Error:
    error = Error(text)
    error.status = status
    return error


def add_context(error: Error, context: str) -> Error:
    """The same error, its text led by who was doing what."""
    return make_error(error.status, f"{context}: {error}")
