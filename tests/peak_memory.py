"""The most memory that torch has handed out at once while something ran."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from torch.profiler import ProfilerActivity, profile


def peak_bytes(run: Callable[[], Any]) -> int:
    """Of torch's allocator; numpy's copies are not counted."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        run()
    events = [event for event in traced.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))
