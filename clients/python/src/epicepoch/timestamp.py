"""Timestamps and ranges of them, as values. This module does no IO and reads no clock."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Optional, Union

U64_MAX = (1 << 64) - 1

COMPACT_MAX = U64_MAX // 1_000_000 << 18 | (1 << 18) - 1
"""The largest compact timestamp. It is below 2**63."""

COMPACT_COUNT_MAX = 1 << 18
"""A millisecond has this many compact timestamps, so a request gets no more of them."""

_BYTES = struct.Struct(">QQ")
_TEXT = re.compile("[0-9a-fA-F]{32}")
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, order=True)
class Timestamp:
    """A moment that the oracle gave to exactly one caller.

    Timestamps have the order of their bytes, and of their text: first by epoch, then by index.

    >>> one = Timestamp.parse("17979cfe3d85cd150000000000000007")
    >>> one.epoch, one.index
    (1700000000123456789, 7)
    >>> print(one, one.time())
    17979cfe3d85cd150000000000000007 2023-11-14 22:13:20.123456+00:00
    >>> one < Timestamp(one.epoch, 8)
    True
    """

    __slots__ = ("epoch", "index")

    epoch: int
    """Unix time in nanoseconds, below 2**64."""
    index: int
    """The position within the epoch, from 0, below 2**64."""

    def __post_init__(self) -> None:
        if not (0 <= self.epoch <= U64_MAX and 0 <= self.index <= U64_MAX):
            raise ValueError(f"epoch {self.epoch}, index {self.index}: each must be below 2**64")

    @classmethod
    def from_bytes(cls, key: bytes) -> "Timestamp":
        """Read the 16 bytes of a timestamp. Raise ValueError for any other number of bytes."""
        if len(key) != _BYTES.size:
            raise ValueError(f"a timestamp has {_BYTES.size} bytes, not {len(key)}")
        return cls(*_BYTES.unpack(key))

    @classmethod
    def parse(cls, text: str) -> "Timestamp":
        """Read the 32 hexadecimal digits of ``str(timestamp)``. Raise ValueError for any other
        text."""
        if _TEXT.fullmatch(text) is None:
            raise ValueError(f"a timestamp has 32 hexadecimal digits, {text!r} has not")
        return cls.from_bytes(bytes.fromhex(text))

    @classmethod
    def lowest(cls, at: Union[datetime, int]) -> "Timestamp":
        """Return the lowest timestamp of a wall time, for queries that begin at that time.

        The time is an aware datetime, or a number of nanoseconds as of ``time.time_ns()``. For a
        time before 1970 this is the zero timestamp; after 2554 it has the highest epoch.

        >>> print(Timestamp.lowest(datetime(2026, 11, 21, 9, tzinfo=timezone.utc)))
        18ea03d18c73a0000000000000000000
        """
        return cls(_epoch_of(at), 0)

    @classmethod
    def highest(cls, at: Union[datetime, int]) -> "Timestamp":
        """Return the highest timestamp of a wall time, for queries that end at that time.

        A datetime stands for a whole microsecond, so its highest timestamp is in the last
        nanosecond of that microsecond. A number stands for one nanosecond.
        """
        last = 999 if isinstance(at, datetime) else 0
        return cls(min(_epoch_of(at) + last, U64_MAX), U64_MAX)

    @classmethod
    def from_compact(cls, compact: int) -> "Timestamp":
        """Read a compact timestamp. Raise ValueError unless it is within 0 to ``COMPACT_MAX``.

        >>> Timestamp.from_compact(445644800000000005).index
        5
        """
        if not 0 <= compact <= COMPACT_MAX:
            raise ValueError(f"{compact} is no compact timestamp, allowed are 0 to {COMPACT_MAX}")
        return cls((compact >> 18) * 1_000_000, compact & (1 << 18) - 1)

    def compact(self) -> Optional[int]:
        """Return the compact spelling, ``milliseconds << 18 | index``, in the same order.

        Return None if there is none: the epoch is not a whole millisecond, or the index is 2**18 or
        higher. In a cluster with ``TIMESTAMP_FORMAT=compact`` every timestamp has one.
        """
        if self.epoch % 1_000_000 or self.index >> 18:
            return None
        return self.epoch // 1_000_000 << 18 | self.index

    def time(self) -> datetime:
        """Return the wall time of the epoch in UTC, rounded down to a microsecond."""
        return _UNIX_EPOCH + timedelta(microseconds=self.epoch // 1000)

    def hex(self) -> str:
        """Return the bytes as 32 lower-case hexadecimal digits."""
        return f"{self.epoch:016x}{self.index:016x}"

    def __bytes__(self) -> bytes:
        """Return the 16 bytes, for use as a key."""
        return _BYTES.pack(self.epoch, self.index)

    def __str__(self) -> str:
        return self.hex()

    def __reduce__(self) -> tuple[Any, ...]:
        return Timestamp, (self.epoch, self.index)


@dataclass(frozen=True)
class TimestampRange:
    """Timestamps of one epoch with consecutive indexes.

    >>> three = TimestampRange(Timestamp(1, 7), 3)
    >>> [one.index for one in three], three.last.index, len(three)
    ([7, 8, 9], 9, 3)
    """

    __slots__ = ("first", "count")

    first: Timestamp
    """The lowest timestamp."""
    count: int
    """The number of timestamps, at least 1."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.first.index + self.count - 1 > U64_MAX:
            raise ValueError(f"no {self.count} timestamps of one epoch begin at {self.first}")

    @property
    def last(self) -> Timestamp:
        """The highest timestamp."""
        return self[-1]

    def compact(self) -> Optional[range]:
        """Return the compact spellings of all timestamps, or None if one has none.

        >>> TimestampRange(Timestamp(1_000_000, 7), 2).compact()
        range(262151, 262153)
        """
        first, last = self.first.compact(), self.last.compact()
        return None if first is None or last is None else range(first, last + 1)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, offset: int) -> Timestamp:
        at = offset + self.count if offset < 0 else offset
        if not 0 <= at < self.count:
            raise IndexError(f"offset {offset} of {self.count} timestamps")
        return Timestamp(self.first.epoch, self.first.index + at)

    def __iter__(self) -> Iterator[Timestamp]:
        epoch, first = self.first.epoch, self.first.index
        return (Timestamp(epoch, index) for index in range(first, first + self.count))

    def __reduce__(self) -> tuple[Any, ...]:
        return TimestampRange, (self.first, self.count)


def _epoch_of(at: Union[datetime, int]) -> int:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ValueError(f"{at} has no time zone; use datetime.now(timezone.utc)")
        at = (at - _UNIX_EPOCH) // timedelta(microseconds=1) * 1000
    return min(max(at, 0), U64_MAX)
