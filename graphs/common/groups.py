"""Groups of numbers that become one where they overlap (union-find)."""

from collections.abc import Iterable, Sequence


def least_members(n: int, groups: Iterable[Sequence[int]]) -> list[int]:
    """[n], the smallest member of each number's group; groups that overlap become one."""
    leader = list(range(n))

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    for group in groups:
        for other in group[1:]:
            first, second = sorted((find(group[0]), find(other)))
            leader[second] = first
    return [find(i) for i in range(n)]
