"""The tree of conversations, against a plain model of it, with clients that write everything in their own way."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from prorl.api import ToolSchema
from prorl.capture.chat_completions import ChatCompletions
from prorl.capture.messages import Messages
from prorl.capture.responses import Responses
from prorl.capture.talk import Asked, Called, Heard
from prorl.capture.trace import Trace, canonical_arguments

words = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
names = st.sampled_from(["look", "run"])
scalars = st.none() | st.booleans() | st.integers(-(2**50), 2**50) | words | st.floats(-1e6, 1e6, allow_nan=False)
arguments = st.dictionaries(words, scalars | st.lists(scalars, max_size=3), max_size=3)
users = st.builds(Heard, role=st.sampled_from(["user", "system", "tool"]), text=words)
batches = st.lists(users, min_size=1, max_size=3)
replies = st.builds(lambda text, calls: (text, calls), words, st.lists(st.tuples(names, arguments), max_size=2))
SET = [ToolSchema(name="look", description="", parameters={"type": "object"})]


def spoken(text: str, calls: Any, number: int) -> Heard:
    made = [Called(id=f"{number}.{i}", name=name, arguments=json.dumps(given)) for i, (name, given) in enumerate(calls)]
    return Heard(role="assistant", text=text, calls=tuple(made))


def in_other_words(message: Heard, draw: Any) -> Heard:
    """The same message as a client may send it back."""
    pad = draw(st.sampled_from(["", " ", "\n", "\t \n"]))
    calls = []
    for call in message.calls:
        value = json.loads(call.arguments)
        keys = draw(st.permutations(list(value)))
        text = json.dumps(
            {key: value[key] for key in keys}, indent=draw(st.sampled_from([None, 2])), ensure_ascii=False
        )
        calls.append(Called(id=draw(st.sampled_from([call.id, "another"])), name=call.name, arguments=text))
    return msgspec.structs.replace(message, text=pad + message.text + pad, calls=tuple(calls))


def plain(message: Heard) -> Any:
    calls = [(call.name, json.dumps(canonical_arguments(call.arguments), sort_keys=True)) for call in message.calls]
    return (message.role, message.text.strip(), tuple(calls))


@given(st.data())
def test_a_conversation_is_found_where_it_stands(data: st.DataObject) -> None:
    """Grow a tree at random; whatever its client makes of the words, each conversation is found at its own place."""
    trace: Trace[Any, Any] = Trace()
    known: list[tuple[tuple[Heard, ...], Any]] = []  # conversations of ours up to a reply, and the place behind it
    for number in range(data.draw(st.integers(1, 12))):
        before, place = ((), None)
        if known and data.draw(st.booleans()):
            before, place = data.draw(st.sampled_from(known))
        new = tuple(data.draw(batches))
        conversation = tuple(in_other_words(message, data.draw) for message in (*before, *new))
        prompt = trace.find(conversation)
        if place is None:
            assert prompt.after is None
            assert [plain(message) for message in prompt.new] == [plain(message) for message in new]
        else:
            assert prompt.after is not None
            assert [plain(message) for message in prompt.new] == [plain(message) for message in new]
            # Replies alike in every word may stand for one another; what is on the stream is the same then.
            alike = [other for told, other in known if [*map(plain, told)] == [*map(plain, before)]]
            assert prompt.after.place in alike
        reply = spoken(*data.draw(replies), number)
        trace.say(prompt, reply, place=number)
        known.append(((*before, *new, reply), number))


@given(batches, replies, batches)
def test_alike_replies_are_told_apart_by_the_ids_of_their_calls(first, reply, then) -> None:
    text, calls = reply
    trace: Trace[Any, Any] = Trace()
    prompt = trace.find(first)
    twins = [spoken(text, [*calls, ("look", {})], number) for number in range(3)]
    for number, twin in enumerate(twins):
        trace.say(prompt, twin, number)
    found = [trace.find([*first, twin, *then]) for twin in twins]
    assert [each.after.place for each in found if each.after is not None] == [0, 1, 2]
    assert len({id(each) for each in found}) == 3
    assert trace.find([*first, twins[1], *then]) is found[1]


@given(batches, replies, batches)
def test_other_tools_other_words_another_conversation(first, reply, then) -> None:
    trace: Trace[Any, Any] = Trace()
    said = spoken(*reply, 1)
    trace.say(trace.find(first), said, "here")
    assert trace.find([*first, said, *then]).after is not None
    assert trace.find([*first, said, *then], SET).after is None
    edited = msgspec.structs.replace(said, text=said.text + "x")
    assert trace.find([*first, edited, *then]).new == (*first, edited, *then)
    assert trace.find([Heard(role="system", text="?"), *first, said, *then]).after is None


CALL = {"city": "Rome", "days": 1.0}


def test_the_three_apis_say_one_conversation_alike() -> None:
    """The forms that clients use, with what they add and leave out."""
    chat = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "look", "arguments": ' {"days": 1, "city":"Rome"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "name": "look", "content": [{"type": "text", "text": "sun"}]},
    ]
    responses = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": json.dumps(CALL), "id": "fc_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "sun"},
    ]
    messages = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": CALL},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "sun"}]},
    ]
    asked: list[Asked] = [
        ChatCompletions().parse(json.dumps({"model": "m", "messages": chat}).encode()),
        Responses().parse(json.dumps({"model": "m", "instructions": "Be brief.", "input": responses}).encode()),
        Messages().parse(
            json.dumps({"model": "m", "max_tokens": 9, "system": "Be brief.", "messages": messages}).encode()
        ),
    ]
    trace: Trace[Any, Any] = Trace()
    assert len({id(trace.find(each.messages)) for each in asked}) == 1
