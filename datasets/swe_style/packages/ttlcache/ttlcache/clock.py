"""Clocks. A clock is anything that can be called and returns seconds."""


class ManualClock:
    """A clock that moves only when it is told to, for tests."""

    def __init__(self, start=0.0):
        self.now = start

    def __call__(self):
        return self.now

    def advance(self, seconds):
        """Let time pass."""
        if seconds < 0:
            raise ValueError(f"time cannot go back, got {seconds}")
        self.now += seconds
