"""The heap against a model of it: always one of the least, never below the minimum when joining."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from prorl.llm.pool.heap import TaskHeap


@dataclass(eq=False)
class Member:
    url: str
    rank: int = 0
    assigned: int = 0
    in_flight: int = 0


STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "take", "avoid", "assign"]), st.integers(0, 5)), max_size=80
)


@given(STEPS)
def test_the_heap_takes_a_least_loaded_member(steps):
    heap, all_members = TaskHeap(), [Member(str(number), in_flight=number % 3) for number in range(6)]
    inside: list[Member] = []
    for action, number in steps:
        member = all_members[number]
        if action == "join" and member not in inside:
            least = min((m.rank for m in inside), default=0)
            heap.join(member)
            inside.append(member)
            assert member.rank >= least
        elif action == "leave" and member in inside:
            heap.leave(member)
            inside.remove(member)
        elif action == "assign" and member in inside:
            heap.assign(member)
        elif action in ("take", "avoid"):
            avoid = {member.url} if action == "avoid" else set()
            pool = [m for m in inside if m.url not in avoid] or inside
            best = min(((m.rank, m.in_flight) for m in pool), default=None)
            taken = heap.take(avoid)
            assert (taken is None) == (not inside)
            if taken is not None:
                assert (taken.rank - 1, taken.in_flight) == best
        assert len(heap) == len(inside)
        assert all((m in heap) == (m in inside) for m in all_members)


def test_equal_backends_share_to_the_task():
    heap, members = TaskHeap(), [Member(str(number)) for number in range(7)]
    for member in members:
        heap.join(member)
    for _ in range(7 * 100):
        heap.take()
    assert [member.assigned for member in members] == [100] * 7
