"""Templates that refuse, break or hide something end in a typed fault that says so."""

import pytest
from tokenizers import AddedToken

from prorl.api import Message, ModelFault, TaskFault
from prorl.llm.rendering.renderer import Renderer
from prorl.llm.rendering.template import ChatTemplate
from prorl.llm.tokenizers.local import LocalTokenizer
from prorl.llm.toolformats.base import TemplateRefusal
from prorl.testing.bytebpe import build_tokenizer

USER = Message(role="user", content="Hi")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ BODY }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


async def make(kit, source, **variables):
    return await Renderer.create(ChatTemplate(source, variables=variables), kit.tokenizer)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% if %}", "does not compile"),
        ("{{ bos_token }}", "needs a bos_token"),
        ("{{ raise_exception('no chat today') }}", "no chat today"),
        ("{{ messages[9].content + 'x' }}", "refuses"),
        ("{{ messages.__class__.__mro__ }}", "refuses|leaves out"),
        ("always the same", "leaves out"),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "does not close a reply"),
        (CHATML.replace("BODY", "m.content | upper"), "leaves out|changes"),
        (CHATML.replace("BODY", "m.content | e"), "changes message bodies"),
    ],
)
async def test_templates_that_cannot_be_used(kit, source, says):
    with pytest.raises(ModelFault, match=says) as caught:
        await make(kit, source)
    assert caught.value.code == "template"


@pytest.mark.parametrize(
    ("body", "given", "comes_out"),
    [
        ("m.content", "\n a\n", "\n a\n"),
        ("m.content | trim", "\n a \n", "a"),
        ("m.content.strip('\\n')", "\n a \n", " a "),
        ("m.content.lstrip('\\n')", "\n a \n", " a \n"),
        ("m.content.rstrip('\\n')", "\n a \n", "\n a "),
        ("m.content.lstrip()", "\n a \n", "a \n"),
        ("m.content.rstrip()", "\n a \n", "\n a"),
        ("m.content | tojson", 'é "\n', '"é \\"\\n"'),
        ("m.content | trim | tojson", ' "\n', '"\\""'),
    ],
)
async def test_what_a_template_does_to_bodies_is_done(kit, body, given, comes_out):
    renderer = await make(kit, CHATML.replace("BODY", body))
    message = Message(role="user", content=given)
    rendered = await renderer.between([message], previous_ended_with=None, now=kit.now)
    assert rendered.text == f"<|im_end|>\n<|im_start|>user\n{comes_out}<|im_end|>\n<|im_start|>assistant\n"
    assert (await renderer.prompt([message], now=kit.now)).text in rendered.text


async def test_a_role_that_the_template_refuses(kit):
    renderer = await kit.renderer("thinking")
    with pytest.raises(TaskFault, match="only user and assistant") as caught:
        await renderer.prompt([Message(role="system", content="x"), USER], now=kit.now)
    assert caught.value.code == "template"
    with pytest.raises(TaskFault, match="alternate"):
        await renderer.between([USER, USER], previous_ended_with=None, now=kit.now)
    tools = [Message(role="tool", content="a"), Message(role="tool", content="b")]
    rendered = await renderer.between(tools, previous_ended_with=renderer.end_of_turn, now=kit.now)
    assert rendered.text.startswith("\n<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n")


async def test_a_message_that_the_template_leaves_out(kit):
    source = "{% for m in messages if m.role != 'system' %}" + CHATML.split("%}", 1)[1].replace("BODY", "m.content")
    renderer = await make(kit, source)
    with pytest.raises(TaskFault, match="leaves out the message of role system"):
        await renderer.prompt([Message(role="system", content="x"), USER], now=kit.now)


async def test_an_encoder_that_lets_control_tokens_in_is_refused(kit):
    class Careless:
        digest = "x"

        async def encode(self, text, *, special):
            return await kit.tokenizer.encode(text, special=True)

        async def decode(self, ids):
            return await kit.tokenizer.decode(ids)

    with pytest.raises(ModelFault) as caught:
        await Renderer.create(kit.template("qwen3"), Careless())
    assert caught.value.code == "tokenizer_unsafe"


async def test_the_sandbox_holds(kit):
    for source in ("{{ ''.__class__.__base__.__subclasses__() }}", "{{ messages.append(1) }}"):
        with pytest.raises(TemplateRefusal):
            ChatTemplate(source).render([], now=kit.now)


def test_extras_of_transformers(kit):
    source = (
        "{% generation %}{{ {'a': '<é>'} | tojson }}{% endgeneration %}"
        "{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}{{ strftime_now('%Y') }}"
    )
    assert ChatTemplate(source).render([], now=kit.now) == '{"a": "<é>"}12026'


async def test_control_tokens_that_swallow_the_space_after_them(kit):
    """As Phi's do: what follows them must be encoded with them, as it was when the model was trained."""
    encoder = build_tokenizer()
    encoder.add_special_tokens([AddedToken("<|done|>", special=True, rstrip=True, normalized=False)])
    tokenizer = LocalTokenizer(encoder.to_str().encode(), source="x")
    source = CHATML.replace("BODY", "m.content").replace("<|im_end|>", "<|done|>")
    renderer = await Renderer.create(ChatTemplate(source), tokenizer)
    prompt = await renderer.prompt([USER, USER], now=kit.now)
    assert prompt.ids == await tokenizer.encode(prompt.text, special=True)
    rendered = await renderer.between([USER], previous_ended_with=None, now=kit.now)
    assert rendered.ids == await tokenizer.encode(rendered.text, special=True)
    assert rendered.text.startswith("<|done|>\n<|im_start|>")


async def test_plain_text_that_looks_like_markup_stays_text(kit):
    """Scaffold text in angle brackets that is no token of this vocabulary."""
    renderer = await make(kit, CHATML.replace("BODY", "'<turn>' + m.content + '</turn>'"))
    rendered = await renderer.prompt([USER], now=kit.now)
    assert rendered.ids == await kit.tokenizer.encode(rendered.text, special=True)
