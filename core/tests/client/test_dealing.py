"""The paper's two phases: the own node first, then all even."""

from hypothesis import given
from hypothesis import strategies as st

from prorl.client.dealing import addresses_of, deal

IPS = st.frozensets(st.sampled_from("abcd"), min_size=1, max_size=2)


def named(prefix, addresses):
    return {f"{prefix}{i}": address for i, address in enumerate(addresses)}


def test_own_node_first_then_the_least():
    servers = {"s1": frozenset("a"), "s2": frozenset("b")}
    engines = {"e1": frozenset("a"), "e2": frozenset("a"), "e3": frozenset("b"), "e4": frozenset("x")}
    assert deal(servers, engines) == {"s1": ["e1", "e2"], "s2": ["e3", "e4"]}


def test_none_goes_empty():
    assert deal({"s1": frozenset("a"), "s2": frozenset("b"), "s3": frozenset("c")}, {"e": frozenset("b")}) == {
        "s1": ["e"],
        "s2": ["e"],
        "s3": ["e"],
    }


@given(st.lists(IPS, max_size=6), st.lists(IPS, max_size=12))
def test_whatever_there_is(servers, engines):
    members, llms = named("s", servers), named("e", engines)
    hands = deal(members, llms)
    assert hands == deal(members, llms)
    assert set(hands) == set(members)
    if not members or not llms:
        assert not any(hands.values())
        return
    assert all(hands.values()), "every rollout server has an LLM server"
    assert {engine for hand in hands.values() for engine in hand} == set(llms)
    if len(llms) >= len(members) * 6:
        assert sum(map(len, hands.values())) == len(llms)
    for server, hand in hands.items():
        for engine in hand:
            near = [s for s in members if members[s] & llms[engine]]
            shared = sum(engine in other for other in hands.values()) > 1
            assert not near or server in near or shared, "it went to its own node"


@given(st.integers(1, 6), st.integers(0, 30))
def test_strangers_are_dealt_evenly(servers, engines):
    hands = deal(named("s", [frozenset("a")] * servers), named("e", [frozenset("b")] * engines))
    sizes = [len(hand) for hand in hands.values()]
    assert max(sizes) - min(sizes) <= 1


async def test_addresses():
    assert "127.0.0.1" in await addresses_of("http://127.0.0.1:80")
    assert await addresses_of("http://no-such-host.invalid:1") == {"no-such-host.invalid"}
