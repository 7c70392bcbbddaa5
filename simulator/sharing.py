"""Channels whose bandwidth all current messages share equally.

::

    a  ====----====          a has the whole bandwidth for 4 s, half of it for 4 s, then the whole again
    b      ----              b takes twice as long as it would without a

If each message uses one channel, this is progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2). A
channel has a clock of isolated seconds: it advances by 1 / n of the real time while n messages are sent, which is the
progress of each of them. So a message of w isolated seconds leaves when the clock shows w more than at its arrival.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeAlias

Event: TypeAlias = tuple[float, int]
"""A second, and the message that may enter or leave a channel then."""


@dataclass(slots=True)
class _Channel:
    """One channel."""

    clock_s: float = 0.0  # the clock of isolated seconds
    at_s: float = 0.0  # second at which the clock was last set
    leaves: list[Event] = field(default_factory=list)  # heap of (clock at which the message leaves, message)
    due: Event = (0.0, -1)  # the next departure, if no other message enters before

    def advance(self, now_s: float) -> None:
        if self.leaves:
            self.clock_s += (now_s - self.at_s) / len(self.leaves)
        self.at_s = now_s


class SharedChannels:
    """The messages on all channels. The caller keeps the events and reports when one of them is due."""

    def __init__(self) -> None:
        self._channels: dict[int, _Channel] = {}
        self._entered: set[int] = set()

    def arrives(self, event: Event, channel: int, isolated_s: float, events: list[Event]) -> bool:
        """Whether a message has arrived at its receiver; at its first event, it enters its channel.

        Args:
            event: the event that is due; its time never decreases from call to call.
            channel: number of the message's channel.
            isolated_s: seconds of the message on an otherwise empty channel.
            events: heap to which the next event is pushed, which is obsolete if another event comes before.
        """
        state = self._channels.setdefault(channel, _Channel())
        now_s, number = event
        arrived = number in self._entered
        if not arrived:
            self._entered.add(number)
            state.advance(now_s)
            heappush(state.leaves, (state.clock_s + isolated_s, number))
        elif state.due == event:
            state.at_s, state.clock_s = now_s, heappop(state.leaves)[0]
        else:
            return False
        state.due = (0.0, -1)
        if state.leaves:
            clock_s, first = state.leaves[0]
            state.due = (now_s + max(0.0, clock_s - state.clock_s) * len(state.leaves), first)
            heappush(events, state.due)
        return arrived
