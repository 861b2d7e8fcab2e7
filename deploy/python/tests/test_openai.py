"""OpenAI's own client against the router: what its users do must be as with one engine."""

import asyncio
import subprocess
import threading
import time
from contextlib import contextmanager

import openai
import pytest
from conftest import ask, free_port, is_healthy, metric, tokens_handed_over, until
from pd_router.binary import find_binary

STORY = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "tell of a river, a boat and a bridge"}]
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def is_alive(port):
    """Whether the router itself is up."""
    try:
        return ask(port, "GET", "/liveness", timeout=2)[0] == 200
    except OSError:
        return False


@contextmanager
def routing(engines, *words, is_up=is_healthy):
    """A router before these engines."""
    port = free_port()
    command = [find_binary(), f"--port={port}", f"--prometheus-port={free_port()}", "--log-level=warning"]
    command += [f"--prefill={engines.url('prefill')}", f"--decode={engines.url('decode')}", *words]
    with subprocess.Popen(command) as router:
        try:
            until(lambda: is_up(port), "the router", lambda: router.poll() is None)
            yield port
        finally:
            router.kill()


def client_of(port, kind=openai.OpenAI, **how):
    """A client that does not try again unless told to."""
    return kind(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", **{"max_retries": 0, "timeout": 30, **how})


@pytest.fixture(scope="module")
def port(engines):
    """A router's port."""
    with routing(engines) as port:
        yield port


@pytest.fixture
def client(port):
    """A client of the router."""
    with client_of(port) as client:
        yield client


@pytest.fixture
def alone(engines):
    """A client of one engine, without router."""
    with client_of(engines.ports["decode"]) as client:
        yield client


def chat(client, **settings):
    return client.chat.completions.create(**{"model": "sim", "messages": STORY, "max_tokens": 20, **settings})


def text_of(stream):
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_models(client):
    assert [model.id for model in client.models.list()] == ["sim"]


def test_chat_is_as_from_one_engine(client, alone, engines):
    before = tokens_handed_over(engines)
    ours = chat(client)
    assert tokens_handed_over(engines) > before
    theirs = chat(alone)
    assert ours.choices[0].message.content and ours.choices == theirs.choices
    assert ours.usage.prompt_tokens == theirs.usage.prompt_tokens
    assert ours.usage.completion_tokens == 20


def test_a_streamed_chat_is_the_same_text(client):
    assert text_of(chat(client, stream=True)) == chat(client).choices[0].message.content


def test_a_stream_with_usage(client):
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 20
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"


def test_completions(client, alone):
    def complete(client, **settings):
        return client.completions.create(model="sim", prompt="once upon a time", max_tokens=9, logprobs=2, **settings)

    whole = complete(client)
    assert whole.choices == complete(alone).choices
    streamed = list(complete(client, stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == whole.choices[0].text
    assert len(whole.choices[0].logprobs.token_logprobs) == 9


def test_several_answers(client, alone):
    assert [choice.message.content for choice in chat(client, n=3).choices] == [
        choice.message.content for choice in chat(alone, n=3).choices
    ]


def test_tools_reach_the_engine(client, alone):
    settings = {"tools": [TOOL], "tool_choice": "auto", "extra_body": {"chat_template_kwargs": {"thinking": False}}}
    ours = chat(client, **settings)
    assert ours.choices == chat(alone, **settings).choices
    assert ours.choices != chat(client).choices, "the engine did not see them"


def test_responses(client, alone):
    settings = {"model": "sim", "input": "a short poem", "max_output_tokens": 8}
    whole = client.responses.create(**settings)
    assert whole.output_text and whole.output_text == alone.responses.create(**settings).output_text
    events = list(client.responses.create(**settings, stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text


@pytest.mark.parametrize("stream", [False, True])
def test_an_engines_refusal_is_the_engines(client, alone, stream):
    for settings, kind in (
        ({"model": "no-such-model"}, openai.NotFoundError),
        ({"max_tokens": -1}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "long " * 30000}]}, openai.BadRequestError),
    ):
        caught = []
        for each in (client, alone):
            with pytest.raises(kind) as error:
                chat(each, stream=stream, **settings)
            caught.append(error.value.body)
        assert caught[0] == caught[1] and caught[0]["message"]


class Nobody:
    """Engines that are not there."""

    def __init__(self):
        self._ports = {"prefill": free_port(), "decode": free_port()}

    def url(self, role):
        """Where it would be."""
        return f"http://127.0.0.1:{self._ports[role]}"


def test_no_engine_is_an_error_with_a_body():
    with routing(Nobody(), "--disable-retries", is_up=is_alive) as port, client_of(port) as client:
        with pytest.raises(openai.InternalServerError) as error:
            chat(client)
    assert error.value.status_code == 503
    assert error.value.body["message"] and error.value.body["type"]


def running(engines):
    """Requests in flight at the decode engine."""
    return metric(engines.ports["decode"], "vllm:num_requests_running")


def test_a_clients_timeout_frees_the_engine(client, engines):
    with pytest.raises(openai.APITimeoutError):
        chat(client.with_options(timeout=0.5), max_tokens=1000)
    until(lambda: running(engines) == 0, "the engine to be free")


def test_a_stream_that_is_left_frees_the_engine(client, engines):
    with chat(client, stream=True, max_tokens=1000) as stream:
        next(iter(stream))
        assert running(engines) == 1
    until(lambda: running(engines) == 0, "the engine to be free")


def test_overload_is_429_and_tried_again_later(engines):
    with routing(engines, "--max-concurrent-requests=1", "--queue-size=0") as port, client_of(port) as client:
        stream = chat(client, stream=True, max_tokens=100)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as error:
            chat(client)
        assert int(error.value.response.headers["retry-after"]) >= 1
        rest = threading.Thread(target=lambda: text_of(stream))
        rest.start()
        start = time.monotonic()
        assert chat(client.with_options(max_retries=4)).choices[0].message.content
        assert time.monotonic() - start >= 0.5, "it was not turned away first"
        rest.join()


def test_many_streams_at_once(port, client):
    alone = chat(client).choices[0].message.content

    async def all_of_them():
        async with client_of(port, openai.AsyncOpenAI) as many:

            async def one(number):
                message = {"role": "user", "content": f"story {number}"}
                extra = {} if number % 2 else {"messages": [message]}
                stream = await chat(many, stream=True, **extra)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

            return await asyncio.gather(*(one(number) for number in range(50)))

    texts = asyncio.run(all_of_them())
    assert texts[1::2] == [alone] * 25, "an answer went to another request"
    assert len(set(texts[::2])) == 25 and alone not in texts[::2]
