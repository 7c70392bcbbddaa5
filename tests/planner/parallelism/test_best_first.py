"""The search for the best stages, with sources of costs that are made by hand."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

import pytest

from planner.parallelism.best_first import Prefix, best_first
from planner.problem.deadline import Deadline

STAGES = {"a": 1.0, "b": 2.0, "c": 4.0}  # seconds of each stage; a pipeline of two adds them up


@dataclass
class Source:
    """Pipelines of two stages, which may have to be different ones."""

    exact: bool = True
    barred: tuple[str, ...] = ()  # pipelines that break a constraint, as "ab"
    extended: list[str] = field(default_factory=list)

    def beginnings(self) -> list[Prefix[str]]:
        return [Prefix(2 * min(STAGES.values()), 2, 0, 2, (0.0,), ())]

    def longer(self, begun: Prefix[str]) -> Iterator[Prefix[str]]:
        self.extended.append("".join(begun.stages))
        for name, seconds in STAGES.items():
            sum_s, to_come = begun.costs_s[0] + seconds, begun.to_come - 1
            bound_s = sum_s + to_come * min(STAGES.values())
            yield Prefix(bound_s, to_come, begun.at + 1, begun.left - 1, (sum_s,), (*begun.stages, name))

    def solution(self, begun: Prefix[str]) -> tuple[str, float] | None:
        name = "".join(begun.stages)
        return None if name in self.barred else (name, begun.costs_s[0])


def test_the_fastest_stages_and_their_step() -> None:
    assert best_first(Source(), inf, 100, Deadline(60.0)) == ("aa", 2.0)


def test_stages_that_break_a_constraint_are_no_answer() -> None:
    found, bound_s = best_first(Source(exact=False, barred=("aa", "ab", "ba")), inf, 100, Deadline(60.0))
    assert (found, bound_s) == ("bb", 4.0)


def test_nothing_is_below_the_limit() -> None:
    assert best_first(Source(), 2.0, 100, Deadline(60.0)) == (None, inf)


def test_a_dearer_beginning_goes_on_only_where_costs_do_not_say_all() -> None:
    exact, inexact = Source(barred=("aa", "ab", "ac")), Source(exact=False, barred=("aa", "ab", "ac"))
    assert best_first(exact, inf, 100, Deadline(60.0)) == (
        None,
        inf,
    )  # exact costs promise that "ba" is no better than "aa"
    assert best_first(inexact, inf, 100, Deadline(60.0)) == ("ba", 3.0)
    assert exact.extended == ["", "a"]
    assert inexact.extended[:3] == ["", "a", "b"]


@pytest.mark.parametrize(("most_steps", "bound_s"), [(1, 2.0), (2, 2.0), (3, 2.0)])
def test_the_bound_of_a_search_that_is_cut_short_holds(most_steps: int, bound_s: float) -> None:
    found, least_s = best_first(Source(), inf, most_steps, Deadline(60.0))
    assert least_s == bound_s
    assert found == ("aa" if most_steps == 3 else None)


def test_at_the_deadline_the_bound_is_that_of_the_next_beginning() -> None:
    assert best_first(Source(), inf, 100, Deadline(0.0)) == (None, 2.0)
