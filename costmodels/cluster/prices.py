"""Prices of devices by the hour, and what a run costs."""

import re
from collections.abc import Iterable
from typing import NamedTuple, Self

from graphs.common.errors import InputError

_PRICE = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([A-Za-z]{3})\s*/\s*h\s*", re.ASCII)
HOUR_S = 3600.0


class HourlyPrice(NamedTuple):
    """Price of a device for each hour, used or idle."""

    per_h: float
    currency: str

    @classmethod
    def parse(cls, text: object, field: str = "the price") -> Self:
        """Read a price such as "2.49 USD/h".

        Raises:
            InputError: for any other text.
        """
        match = _PRICE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InputError(f"{field} is {text!r}; write a number and a currency an hour, for example '2.49 USD/h'")
        return cls(float(match[1]), match[2].upper())

    def __str__(self) -> str:
        return f"{self.per_h:.10g} {self.currency}/h"

    def of(self, seconds: float) -> str:
        """Return the cost of this many seconds, as text for people."""
        cost = self.per_h * seconds / HOUR_S
        return f"{cost:,.2f} {self.currency}" if cost >= 1 or not cost else f"{cost:.3g} {self.currency}"


def total_price(prices: Iterable[HourlyPrice | None]) -> HourlyPrice | None:
    """Return the price of devices of one currency together; None if the price of one is unknown or there are none."""
    known = list(prices)
    if not known or any(price is None for price in known):
        return None
    several = [price for price in known if price is not None]
    return HourlyPrice(sum(price.per_h for price in several), several[0].currency)
