"""CUDA streams and events that know how far each stream has come, in seconds of the simulated GPU."""

from __future__ import annotations

import torch

CUDA = torch.device("cuda", 0)


class Stream:
    cuda_stream = 0
    device = CUDA
    stream_id = 0
    device_index = 0
    current: "Stream"
    """The one that work is put on."""
    main: "Stream"
    """The default stream."""

    def __init__(self, *args, **kwargs):
        self.time = 0.0
        self.waited = lambda seconds: None
        self._outer: list[Stream] = []

    def reach(self, time: float):
        """Nothing on this stream runs before ``time``."""
        if time > self.time:
            idle, self.time = time - self.time, time
            self.waited(idle)

    def wait_stream(self, stream):
        self.reach(stream.time)

    def wait_event(self, event):
        self.reach(event.time)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self):
        Stream.current.reach(self.time)

    def query(self):
        return True

    def __enter__(self):
        self._outer.append(Stream.current)
        Stream.current = self
        return self

    def __exit__(self, *exc):
        Stream.current = self._outer.pop()


class Event:
    def __init__(self, *args, **kwargs):
        self.time = 0.0

    def record(self, stream=None):
        self.time = (stream or Stream.current).time

    def wait(self, stream=None):
        (stream or Stream.current).reach(self.time)

    def synchronize(self):
        self.wait()

    def query(self):
        return True

    def elapsed_time(self, other):
        return 0.0


Stream.main = Stream.current = Stream()


def on(stream: Stream | None) -> Stream:
    """``torch.cuda.stream``: a context; None stays where it is."""
    return stream if stream is not None else Stream.current


def put(stream: Stream | None):
    """``torch.cuda.set_stream``."""
    Stream.current = on(stream)
