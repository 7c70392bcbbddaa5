"""Channels whose bandwidth is shared: whoever sends gets an equal part of it, as long as others send too.

::

    a  ====----====          a alone for 4 s, then half of it for 4 s, then alone again
    b      ----              b takes twice as long as it would alone, because a is there

For one channel each that is what progressive filling gives (Bertsekas and Gallager, Data Networks, section 6.5.2). A
channel keeps the seconds that each of its messages would have been sent alone so far, which are the same for all that
are on their way: so a message that needs w of them leaves when that clock shows w more than when it came.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeAlias

Event: TypeAlias = tuple[float, int]
"""A second, and a message that something may happen to then."""


@dataclass(slots=True)
class _Channel:
    """One channel.

    Attributes:
        clock_s: how long each message that is here would have been sent by now, if alone.
        at_s: when the clock was last set.
        leaves: heap of (what the clock shows when it leaves, message).
        due: when the next one leaves, if nobody else comes before.
    """

    clock_s: float = 0.0
    at_s: float = 0.0
    leaves: list[Event] = field(default_factory=list)
    due: Event = (0.0, -1)

    def advance(self, now_s: float) -> None:
        if self.leaves:
            self.clock_s += (now_s - self.at_s) / len(self.leaves)
        self.at_s = now_s


class SharedChannels:
    """Who is on which channel. The caller keeps the events and tells when one of them is due."""

    def __init__(self) -> None:
        self._channels: dict[int, _Channel] = {}
        self._came: set[int] = set()

    def arrives(self, event: Event, channel: int, alone_s: float, events: list[Event]) -> bool:
        """Whether a message has arrived; the first time that it is asked for, its latency is over and it comes.

        Args:
            event: what was due; its time never goes back from call to call.
            channel: the message's channel.
            alone_s: seconds that the message would be on the channel, if alone.
            events: heap; what is to be asked next is pushed, and may be in vain if something else happens before.
        """
        here = self._channels.setdefault(channel, _Channel())
        now_s, number = event
        arrived = number in self._came
        if not arrived:
            self._came.add(number)
            here.advance(now_s)
            heappush(here.leaves, (here.clock_s + alone_s, number))
        elif here.due == event:
            here.at_s, here.clock_s = now_s, heappop(here.leaves)[0]
        else:
            return False
        here.due = (0.0, -1)
        if here.leaves:
            clock_s, first = here.leaves[0]
            here.due = (now_s + max(0.0, clock_s - here.clock_s) * len(here.leaves), first)
            heappush(events, here.due)
        return arrived
