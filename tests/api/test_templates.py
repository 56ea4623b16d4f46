"""Chat templates: what they render, what they are given, and what a bad one costs."""

from __future__ import annotations

import json
import logging
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tickertape.api.templates import ChatTemplate
from tickertape.core.errors import InvalidRequest, StartupError
from tickertape.testing import templates
from tickertape.testing.tokenizers import write_byte_level, write_sentencepiece

USER = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be brief"}
ASSISTANT = {"role": "assistant", "content": "Hello"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": "é<"}'}}
TOOL = {"role": "tool", "tool_call_id": "call_1", "content": "2"}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


def template(source: str, **options: Any) -> ChatTemplate:
    return ChatTemplate(
        {"default": ("test.jinja", source)}, special_tokens={"bos_token": "<s>", "eos_token": "</s>"}, **options
    )


def test_chatml() -> None:
    assert template(templates.CHATML).render([SYSTEM, USER]) == (
        "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_without_a_generation_prompt() -> None:
    rendered = template(templates.CHATML).render([USER], add_generation_prompt=False)
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n"


def test_special_tokens_are_there() -> None:
    assert template(templates.WRITES_BOS).render([USER, ASSISTANT]) == "<s>[INST] Hi [/INST] Hello</s>"


@pytest.mark.parametrize(
    ("source", "messages", "message"),
    [
        (templates.SYSTEM_REFUSED, [SYSTEM], "System role not supported"),
        (templates.SYSTEM_REFUSED, [SYSTEM, USER], "System role not supported"),
        (
            templates.STRICT_ALTERNATION,
            [USER, USER],
            "Conversation roles must alternate user/assistant/user/assistant/...",
        ),
        (
            templates.STRICT_ALTERNATION,
            [ASSISTANT],
            "Conversation roles must alternate user/assistant/user/assistant/...",
        ),
        (templates.ITERATES_ARGUMENTS, [USER, TOOL], "A tool message must follow the call it answers"),
    ],
)
def test_a_refusal_comes_in_the_templates_words(
    source: str, messages: list[dict[str, Any]], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(InvalidRequest) as caught:
        template(source).render(messages)
    assert caught.value.message == message
    assert caught.value.param == "messages"
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_a_refusal_is_one_short_line() -> None:
    with pytest.raises(InvalidRequest) as caught:
        template("{{ raise_exception('a\n\n b' ~ 'c' * 9000) }}").render([USER])
    assert caught.value.message.startswith("a bccc")
    assert len(caught.value.message) == 500


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[5].content + 'secret source' }}",
        "{{ 1 + 'secret source' }}",
        "{{ messages[0].content.secret_source() }}",
        "{% include 'secret source' %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages.append('secret source') }}",
        templates.HOSTILE_ATTRIBUTES,
        "{{ messages|attr('__class__') + 'secret source' }}",
    ],
)
def test_any_other_failure_tells_nothing_of_the_template(source: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidRequest) as caught:
        template(source).render([USER])
    assert caught.value.message == "the chat template cannot render these messages"
    assert len([record for record in caplog.records if record.exc_info]) == 1


@pytest.mark.parametrize(
    "source",
    [
        templates.HOSTILE_LOOPS,
        "{% macro f(xs) %}{% for x in xs %}{% for y in xs %}{% endfor %}{% endfor %}{% endmacro %}"
        "{{ f(range(90000) | list) }}",
        "{% for x in range(90000) recursive %}{% for y in range(90000) %}{% endfor %}{% endfor %}",
    ],
)
def test_loops_end_at_the_time_limit(source: str) -> None:
    began = time.thread_time()
    with pytest.raises(InvalidRequest, match="took too long"):
        template(source, time_limit_s=0.05).render([USER])
    assert time.thread_time() - began < 2.0


def test_a_bounded_loop_is_a_loop_like_any_other() -> None:
    source = (
        "{% for m in messages if m.role != 'system' %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}"
        "{% else %}none{% endfor %}{% for x in nothing %}{% else %};empty{% endfor %}"
        "{% for k, v in {'a': 1}.items() %};{{ k }}={{ v }}{% endfor %}"
        "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %};{{ m.role }}{% endfor %}"
    )
    assert template(source).render([SYSTEM, USER, ASSISTANT]) == "1/2,2/2;empty;a=1;system"


def test_what_hugging_face_templates_expect() -> None:
    now = datetime(2026, 3, 9, 12)
    source = (
        "{{ {'b': '<é>', 'a': [1]} | tojson }}|{{ {'a': 1} | tojson(indent=2) }}|{{ strftime_now('%d %b %Y') }}|"
        "{% generation %}{{ messages[0].content }}{% endgeneration %}|{{ 'a\nb' | indent(2) }}\n"
        "  {% if tools is none and documents is none %}\nnone\n  {% endif %}\n"
    )
    assert template(source, now=lambda: now).render([USER]) == (
        '{"b": "<é>", "a": [1]}|{\n  "a": 1\n}|09 Mar 2026|Hi|a\n  b\nnone\n'
    )


def test_further_variables_reach_the_template() -> None:
    chat = template("{{ 'yes' if enable_thinking else 'no' }}")
    assert chat.render([USER], kwargs={"enable_thinking": True}) == "yes"
    assert chat.render([USER]) == "no"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "chat_template"])
def test_further_variables_do_not_replace_ours(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        template(templates.CHATML).render([USER], kwargs={name: []})
    assert caught.value.param == "chat_template_kwargs"


def test_further_variables_do_not_move_the_deadline() -> None:
    with pytest.raises(InvalidRequest, match="took too long"):
        template(templates.HOSTILE_LOOPS, time_limit_s=0.05).render([USER], kwargs={"the deadline": 1e12})


class TestContent:
    parts = ({"type": "text", "text": "a"}, {"type": "text", "text": "b"})

    @pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
    def test_parts_are_joined_for_a_template_that_takes_text(self, role: str) -> None:
        rendered = template("{{ messages[0].content + '!' }}").render([{"role": role, "content": list(self.parts)}])
        assert rendered == "ab!"

    def test_parts_stay_for_a_template_that_iterates(self) -> None:
        rendered = template(templates.ITERATES_CONTENT).render([{"role": "user", "content": list(self.parts)}])
        assert rendered == "<|im_start|>user\n(a)(b)<|im_end|>\n<|im_start|>assistant\n"

    def test_text_becomes_a_part_for_a_template_that_only_iterates(self) -> None:
        rendered = template(templates.ITERATES_CONTENT).render([USER, {"role": "assistant", "content": ""}])
        assert (
            rendered == "<|im_start|>user\n(Hi)<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n"
        )

    @pytest.mark.parametrize(
        "source",
        [
            "{% for m in messages %}{% if m.content is string %}T{{ m.content }}{% else %}{% for p in m['content'] %}"
            "P{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
            "{% macro show(content) %}{% if content is string %}T{{ content }}{% else %}{% for p in content %}"
            "P{{ p.text }}{% endfor %}{% endif %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
            "{% for m in messages %}{% set c = m.content if m.content else '' %}{% if c is string %}T{{ c }}{% else %}"
            "{% for p in c | selectattr('type', 'equalto', 'text') %}P{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
        ],
    )
    def test_a_template_that_takes_both_gets_what_the_client_sent(self, source: str) -> None:
        assert template(source).render([USER, {"role": "user", "content": list(self.parts)}]) == "THiPaPb"

    @pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "assistant"}])
    def test_no_content_is_empty_content(self, message: dict[str, Any]) -> None:
        assert template(templates.CHATML).render([message], add_generation_prompt=False) == (
            "<|im_start|>assistant\n<|im_end|>\n"
        )

    @pytest.mark.parametrize(
        ("part", "param"),
        [
            ({"type": "image_url", "image_url": {"url": "x"}}, "messages[0].content[0].type"),
            ({"type": "text"}, "messages[0].content[0]"),
            ({"text": "x"}, "messages[0].content[0]"),
            (5, "messages[0].content[0]"),
        ],
    )
    def test_a_part_that_is_not_text_is_named(self, part: object, param: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            template(templates.CHATML).render([{"role": "user", "content": [part]}])
        assert caught.value.param == param


def test_fields_that_are_null_are_not_there() -> None:
    source = "{{ 'name' in messages[0] }} {{ messages[0].tool_calls is defined }} {{ messages[0].name }}"
    assert template(source).render([{**USER, "name": None, "tool_calls": None}]) == "False False "
    assert template(source).render([{**USER, "name": "Bo", "tool_calls": []}]) == "True False Bo"


class TestTools:
    @pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}])
    @pytest.mark.parametrize(
        ("source", "shown"),
        [
            (templates.ITERATES_ARGUMENTS, 'a=1;b="é<";'),
            (templates.CONCATENATES_ARGUMENTS, '({"a": 1, "b": "é<"})'),
            ("{% for m in messages %}{% for c in m.tool_calls or [] %}<call add>{{ c.function.arguments | tojson }}"
             "</call>{% endfor %}{% endfor %}", '{"a": 1, "b": "é<"}'),
        ],
    )  # fmt: skip
    def test_a_call_is_shown_as_the_template_wants_it(self, source: str, shown: str, content: dict[str, Any]) -> None:
        calling = {"role": "assistant", "tool_calls": [CALL], **content}
        assert f"<call add>{shown}</call>" in template(source).render([USER, calling, TOOL, TOOL])

    def test_arguments_that_are_no_object_are_not_lost(self) -> None:
        call = {"type": "function", "function": {"name": "f", "arguments": "{broken"}}
        source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
        assert template(source).render([{"role": "assistant", "tool_calls": [call]}]) == '"{broken"'

    def test_the_request_is_left_as_it_was(self) -> None:
        messages: list[dict[str, Any]] = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, TOOL]
        before = json.dumps(messages)
        template(templates.ITERATES_ARGUMENTS).render(messages, tools=TOOLS)
        assert json.dumps(messages) == before

    def test_the_named_template_for_tools_is_used_with_tools(self) -> None:
        chat = ChatTemplate({"default": ("a", "plain"), "tool_use": ("b", "tools")}, special_tokens={})
        assert (chat.render([USER]), chat.render([USER], tools=TOOLS), chat.render([USER], tools=[])) == (
            "plain",
            "tools",
            "plain",
        )


class TestContinuation:
    @pytest.mark.parametrize(
        ("source", "end"),
        [
            (templates.CHATML, "<|im_start|>assistant\nThe answer is "),
            (templates.WRITES_BOS, "<s>[INST] Hi [/INST] The answer is "),
            (templates.ITERATES_CONTENT, "<|im_start|>assistant\n(The answer is "),
        ],
    )
    def test_the_prompt_ends_right_behind_the_content(self, source: str, end: str) -> None:
        messages = [USER, {"role": "assistant", "content": "The answer is "}]
        rendered = template(source).render(messages, add_generation_prompt=False, continue_final_message=True)
        assert rendered.endswith(end)

    def test_an_equal_text_before_is_not_taken_for_it(self) -> None:
        messages = [{"role": "assistant", "content": "x"}, USER, {"role": "assistant", "content": "x"}]
        rendered = template(templates.CHATML).render(messages, add_generation_prompt=False, continue_final_message=True)
        assert rendered.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nx")

    def test_parts_end_with_the_last(self) -> None:
        messages = [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
        for source, end in ((templates.CHATML, "\nab"), (templates.ITERATES_CONTENT, "(a)(b")):
            rendered = template(source).render(messages, add_generation_prompt=False, continue_final_message=True)
            assert rendered.endswith(end)

    def test_a_template_that_hides_the_message_cannot_continue_it(self) -> None:
        with pytest.raises(InvalidRequest) as caught:
            template("fixed").render([USER], add_generation_prompt=False, continue_final_message=True)
        assert caught.value.param == "continue_final_message"

    @pytest.mark.parametrize(("messages", "generation"), [([USER], True), ([], False)])
    def test_what_makes_no_sense_is_refused(self, messages: list[dict[str, Any]], generation: bool) -> None:
        with pytest.raises(InvalidRequest) as caught:
            template(templates.CHATML).render(messages, add_generation_prompt=generation, continue_final_message=True)
        assert caught.value.param == "continue_final_message"


class TestLoading:
    def write(self, directory: Path, **files: object) -> Path:
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            suffix = "jinja" if isinstance(content, str) else "json"
            (directory / f"{name}.{suffix}").write_text(text, encoding="utf-8")
        return directory

    def rendered(self, directory: Path, **options: Any) -> str:
        chat = ChatTemplate.from_directory(directory)
        assert chat is not None
        return chat.render([USER], **options)

    def test_from_tokenizer_config(self, tmp_path: Path) -> None:
        write_sentencepiece(tmp_path)
        assert self.rendered(tmp_path) == "<s>[INST] Hi [/INST]"

    def test_a_list_of_named_templates(self, tmp_path: Path) -> None:
        named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
        self.write(tmp_path, tokenizer_config={"chat_template": named})
        assert (self.rendered(tmp_path), self.rendered(tmp_path, tools=TOOLS)) == ("D", "T")

    def test_the_file_wins_over_the_config(self, tmp_path: Path) -> None:
        write_byte_level(tmp_path)
        self.write(tmp_path, chat_template="{{ eos_token }}")
        assert self.rendered(tmp_path) == "<|im_end|>"

    def test_additional_files(self, tmp_path: Path) -> None:
        self.write(tmp_path, chat_template="D")
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("T")
        assert (self.rendered(tmp_path), self.rendered(tmp_path, tools=TOOLS)) == ("D", "T")

    def test_the_processors_file(self, tmp_path: Path) -> None:
        assert self.rendered(self.write(tmp_path, chat_template={"chat_template": "P"})) == "P"

    def test_a_model_without_one(self, tmp_path: Path) -> None:
        write_byte_level(tmp_path, chat_template=None)
        assert ChatTemplate.from_directory(tmp_path) is None

    def test_the_operators_file(self, tmp_path: Path) -> None:
        write_sentencepiece(tmp_path / "model")
        self.write(tmp_path, mine="{{ bos_token }}mine")
        chat = ChatTemplate.from_file(tmp_path / "mine.jinja", model_directory=tmp_path / "model")
        assert chat.render([USER]) == "<s>mine"

    @pytest.mark.parametrize(
        ("files", "message"),
        [
            ({"chat_template": "a\nb\n{{ 'x' ]\n"}, "chat_template.jinja, line 3: "),
            ({"chat_template": "{% for m in messages %}"}, "chat_template.jinja, line 1: "),
            ({"chat_template": "\n{{ 1 | nofilter }}"}, "chat_template.jinja, line 2: "),
            (
                {"tokenizer_config": {"chat_template": "\n\n{% endif %}"}},
                "tokenizer_config.json (chat_template), line 3: ",
            ),
            (
                {"tokenizer_config": {"chat_template": [{"name": "tool_use", "template": "\n{{"}]}},
                "tokenizer_config.json (chat_template 'tool_use'), line 2: ",
            ),
            ({"tokenizer_config": {"chat_template": 5}}, "tokenizer_config.json: "),
            ({"tokenizer_config": {"chat_template": [{"name": "x"}]}}, "tokenizer_config.json: "),
            ({"chat_template": "(" + "(" * 5_000 + "{{ " + "(" * 5_000}, "chat_template.jinja"),
        ],
    )
    def test_a_broken_template_is_named_by_file_and_line(
        self, tmp_path: Path, files: dict[str, Any], message: str
    ) -> None:
        self.write(tmp_path, **files)
        with pytest.raises(StartupError) as caught:
            ChatTemplate.from_directory(tmp_path)
        assert caught.value.code == "BadChatTemplate"
        assert caught.value.message.startswith(message)
        assert "\n" not in caught.value.message

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StartupError, match=r"none\.jinja") as caught:
            ChatTemplate.from_file(tmp_path / "none.jinja")
        assert caught.value.code == "BadChatTemplate"


@pytest.mark.parametrize("write", [write_byte_level, write_sentencepiece])
@pytest.mark.parametrize("source", [templates.CHATML, templates.WRITES_BOS, templates.ITERATES_ARGUMENTS])
def test_the_same_as_transformers(tmp_path: Path, write: Any, source: str) -> None:
    transformers = pytest.importorskip("transformers")
    write(tmp_path, chat_template=source)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    ours = ChatTemplate.from_directory(tmp_path)
    assert ours is not None
    messages = [{"role": "system", "content": "Be <b>riéf"}, USER, ASSISTANT, {"role": "user", "content": " x \n"}]
    for generation in (True, False):
        expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation, tools=TOOLS)
        assert ours.render(messages, add_generation_prompt=generation, tools=TOOLS) == expected
