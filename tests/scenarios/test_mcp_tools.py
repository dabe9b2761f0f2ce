"""Tools of MCP servers, run by our server against the SDK's own one: lists, calls, approvals, secrets, failures."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.hosted.mcp import is_sdk_installed
from antiphon.protocol.errors import ServerStoppingError
from antiphon.protocol.requests import decode_create_request
from tests.fake_upstream import Reply, make_head, make_json
from tests.scenarios.client import read_text
from tests.scenarios.houses import House, check_prefixes, list_codes, open_house, play, run
from tests.scenarios.mcp_server import HEADER_SECRET, TOKEN, McpServerThread

pytestmark = pytest.mark.skipif(not is_sdk_installed(), reason="the extra `mcp` is not installed")
STREAMS = pytest.mark.parametrize("stream", [False, True])
ASK_WEATHER = [("home__weather", '{"city":"Oslo"}')]
ASK_ALARM = [("home__alarm", "{}")]
ASK_SEND = [("home__send", '{"to":"Ada"}')]


@pytest.fixture
def server() -> Iterator[McpServerThread]:
    """A server of its own for each test."""
    running = McpServerThread()
    yield running
    running.stop()


def declare(server: McpServerThread, **more: Any) -> dict[str, Any]:
    """The tool of a request, with its secrets."""
    return {
        "type": "mcp",
        "server_label": "home",
        "server_url": server.url,
        "authorization": TOKEN,
        "headers": {"X-Secret": HEADER_SECRET},
        "require_approval": "never",
        **more,
    }


def pick(response: dict[str, Any], kind: str) -> dict[str, Any]:
    """The one item of a kind."""
    found: list[dict[str, Any]] = [item for item in response["output"] if item["type"] == kind]
    assert len(found) == 1, list_kinds(response)
    return found[0]


def list_kinds(response: dict[str, Any]) -> list[str]:
    """The types of the output."""
    return [item["type"] for item in response["output"]]


@STREAMS
@pytest.mark.parametrize("way", ["id", "id from the store", "history"])
def test_a_server_is_listed_once_and_called(
    tmp_path: Path, server: McpServerThread, stream: bool, way: str
) -> None:
    """Spec: mcp_list_tools once per path, mcp_call with its output, its headers at the server."""

    async def story(house: House) -> None:
        tools = [declare(server)]
        first = await house.make(stream=stream, input="Weather in Oslo?", tools=tools)
        assert list_kinds(first) == ["mcp_list_tools", "mcp_call", "message"]
        listing, call, _ = first["output"]
        assert listing["server_label"] == "home"
        assert [tool["name"] for tool in listing["tools"]] == ["alarm", "send", "weather"]
        assert listing["tools"][2]["annotations"]["readOnlyHint"] is True
        assert (call["name"], call["arguments"], call["status"]) == (
            "weather",
            '{"city":"Oslo"}',
            "completed",
        )
        assert (call["output"], call["error"], call["approval_request_id"]) == (
            "4 degrees in Oslo",
            None,
            None,
        )
        if stream:
            assert [kind for kind in house.kinds if "mcp" in kind] == [
                "response.mcp_list_tools.in_progress",
                "response.mcp_list_tools.completed",
                "response.mcp_call.in_progress",
                "response.mcp_call_arguments.delta",
                "response.mcp_call_arguments.done",
                "response.mcp_call.completed",
            ]
        assert house.messages[-1]["content"] == "4 degrees in Oslo"
        assert sorted(house.told) == ["home__alarm", "home__send", "home__weather"]
        if way != "history":
            more: dict[str, Any] = {"previous_response_id": first["id"], "input": "And now?"}
        else:
            history = [{"role": "user", "content": "Weather in Oslo?"}, *first["output"]]
            more = {"input": [*history, {"role": "user", "content": "And now?"}]}
        second = await house.make(stream=stream, tools=tools, **more)
        assert list_kinds(second) == ["mcp_call", "message"]
        assert server.asked == ["list", "call weather", "call weather"]
        check_prefixes(house.upstream)
        assert all(headers["x-secret"] == HEADER_SECRET for headers in server.headers)

    settings = {"limits": {"window_cache_bytes": 0 if way == "id from the store" else 1 << 28}}
    run(tmp_path, [ASK_WEATHER, "4.", ASK_WEATHER, "Still 4."], story, settings=settings)


@STREAMS
def test_a_tool_that_fails_and_one_that_is_not_there(
    tmp_path: Path, server: McpServerThread, stream: bool
) -> None:
    """Spec: the typed error of a call; the model reads it, and the response goes on."""

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="Alarm!", tools=[declare(server)])
        call = pick(made, "mcp_call")
        assert (call["status"], call["output"]) == ("failed", None)
        assert call["error"] == {
            "type": "mcp_tool_execution_error",
            "content": [{"type": "text", "text": "It is broken."}],
        }
        assert "It is broken." in house.messages[-1]["content"]
        assert read_text(made) == "Broken."
        if stream:
            assert "response.mcp_call.failed" in house.kinds

    run(tmp_path, [ASK_ALARM, "Broken."], story)


@STREAMS
@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("approve", [True, False])
def test_a_call_waits_for_approval(
    tmp_path: Path, server: McpServerThread, stream: bool, by_id: bool, approve: bool
) -> None:
    """Spec: mcp_approval_request ends the response; the answer leads to the call, or to none."""
    rules = {"never": {"read_only": True}}

    async def story(house: House) -> None:
        tools = [declare(server, require_approval=rules)]
        first = await house.make(stream=stream, input="Send it.", tools=tools)
        assert list_kinds(first) == ["mcp_list_tools", "mcp_approval_request"]
        assert first["status"] == "completed"
        asked = pick(first, "mcp_approval_request")
        assert (asked["name"], asked["server_label"], asked["arguments"]) == ("send", "home", '{"to":"Ada"}')
        assert server.calls == []
        answer = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": approve}
        if not approve:
            answer["reason"] = "Too early."
        if by_id:
            more: dict[str, Any] = {"previous_response_id": first["id"], "input": [answer]}
        else:
            more = {"input": [{"role": "user", "content": "Send it."}, *first["output"], answer]}
        if approve:
            # Declared nowhere, the server cannot be called: its address and credentials are in no item.
            error = await house.refuse(stream=stream, **more)
            assert (error["param"], error["code"]) == ("tools", "missing_required_parameter")
            assert "'home'" in error["message"]
        second = await house.make(stream=stream, tools=tools, **more)
        if approve:
            assert list_kinds(second) == ["mcp_call", "message"]
            call = pick(second, "mcp_call")
            assert (call["output"], call["approval_request_id"]) == ("Sent.", asked["id"])
            assert server.calls == ["send"]
            window = await house.get(f"/v1/responses/{second['id']}/window")
            assert window["messages"] == house.messages
        else:
            assert list_kinds(second) == ["message"]
            assert server.calls == []
            assert "Too early." in json.dumps(house.messages)
        # Nobody is asked or called a second time for what is settled.
        third = await house.make(
            stream=stream, tools=tools, previous_response_id=second["id"], input="Thanks."
        )
        assert list_kinds(third) == ["message"]
        assert server.calls == (["send"] if approve else [])
        assert server.asked.count("list") == 1
        error = await house.refuse(tools=tools, previous_response_id=third["id"], input=[answer])
        assert "has its response already" in error["message"]
        assert server.calls == (["send"] if approve else [])

    run(tmp_path, [ASK_SEND, "Done.", "Bye."], story)


@STREAMS
def test_calls_that_are_made_at_once_are_asked_for_at_once(
    tmp_path: Path, server: McpServerThread, stream: bool
) -> None:
    """Spec: an approval request for each call; what needs none is called meanwhile, and both answers lead to calls."""
    tools_ = {"never": {"tool_names": ["weather"]}}

    async def story(house: House) -> None:
        tools = [declare(server, require_approval=tools_)]
        first = await house.make(stream=stream, input="All.", tools=tools)
        asks = "mcp_approval_request"
        assert list_kinds(first) == ["mcp_list_tools", asks, "mcp_call", asks]
        assert list_codes(first) == []
        assert server.calls == ["weather"]
        answers = [
            {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": True}
            for item in first["output"]
            if item["type"] == asks
        ]
        second = await house.make(stream=stream, input=answers, tools=tools, previous_response_id=first["id"])
        assert list_kinds(second) == ["mcp_call", "mcp_call", "message"]
        assert server.calls == ["weather", "send", "alarm"]

    run(tmp_path, [[*ASK_SEND, *ASK_WEATHER, *ASK_ALARM], "Done."], story)


@STREAMS
def test_a_call_that_was_made_is_told_although_the_model_fails(
    tmp_path: Path, server: McpServerThread, stream: bool
) -> None:
    """Ours: clients send a request again that was answered with an error, and the tool would be called again."""
    broken = Reply([make_json({"error": {"message": "x"}}, status=500)])

    async def story(house: House) -> None:
        tools = [declare(server, require_approval="always")]
        first = await house.make(input="Send it.", tools=tools)
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": pick(first, "mcp_approval_request")["id"],
            "approve": True,
        }
        approving = {"input": [answer], "tools": tools, "previous_response_id": first["id"]}
        if stream:
            failed = await house.make(stream=True, **approving)
        else:
            told = await house.client.post({"model": "fake-model", **approving})
            assert told.status == 200
            failed = told.body
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert pick(failed, "mcp_call")["output"] == "Sent."
        assert (await house.client.retrieve(failed["id"])).body == failed
        again = await house.make(stream=stream, **approving)
        assert (again["status"], list_codes(again)) == ("completed", ["approval_ignored"])
        assert "used before" in pick(again, "mcp_call")["error"]["message"]
        assert "used before" in json.dumps(house.messages)
        assert server.calls == ["send"]
        # Without a call, an error is an error.
        if not stream:
            unasked = await house.client.refuse(502, model="fake-model", input="?")
            assert unasked["type"] == "server_error"

    run(tmp_path, [ASK_SEND, broken, "It was sent before.", *([] if stream else [broken])], story)


def test_a_call_that_was_made_is_told_although_the_server_stops(
    tmp_path: Path, server: McpServerThread
) -> None:
    """Ours: a client that is told to come back later would have the tool called again."""
    hanging = Reply([make_head(), asyncio.Event()])

    async def story(house: House) -> None:
        body = {"model": "fake-model", "input": "?", "tools": [declare(server)]}
        request = decode_create_request(json.dumps(body).encode())
        round_ = await house.engine.open_round(request, "default")
        collecting = asyncio.create_task(round_.collect())
        while len(house.upstream.asked) < 2:
            await asyncio.sleep(0.01)
        collecting.cancel()
        await asyncio.wait({collecting})
        told = await round_.stop(ServerStoppingError())
        assert told is not None
        assert (told.status, server.calls) == ("failed", ["weather"])
        stored = await house.engine.retrieve("default", round_.id)
        assert (stored.error, stored.output) == (told.error, told.output)

    run(tmp_path, [ASK_WEATHER, hanging], story)


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        *(
            ({"server_url": url}, "server_url")
            for url in ("http://me:word@a.no/mcp", "ws://a.no", "http://", "a.no")
        ),
        *(
            ({"server_url": url}, "server_url")
            for url in ("http://a.no/a b", "http://a.no:99999/", "http://[a/")
        ),
        ({"headers": {"a b": "c"}}, "headers"),
        ({"headers": {"a": "b\r\nc: d"}}, "headers"),
        ({"authorization": "Bearer \n"}, "authorization"),
    ],
)
def test_an_address_or_header_that_cannot_be_used_is_refused_at_once(
    tmp_path: Path, server: McpServerThread, tool: dict[str, Any], param: str
) -> None:
    """Ours: a URL is shown and stored, so it holds no password; what fails at every call is no warning."""

    async def story(house: House) -> None:
        error = await house.refuse(input="?", tools=[declare(server, **tool)])
        assert (error["param"], error["code"]) == (f"tools[0].{param}", "invalid_value")
        assert "word" not in error["message"].replace("password", "")

    run(tmp_path, [], story)


def test_the_query_of_an_address_goes_to_the_server_alone(tmp_path: Path, server: McpServerThread) -> None:
    """Ours: servers take tokens there."""
    url = f"{server.url}?api_key=query-token-123"

    async def story(house: House) -> None:
        tools = [declare(server, server_url=url)]
        made = await house.make(input="?", tools=tools)
        assert pick(made, "mcp_call")["output"] == "4 degrees in Oslo"
        assert made["tools"][0]["server_url"] == server.url
        body = {"model": "fake-model", "input": "?", "tools": tools, "background": True, "stream": False}
        queued = await house.client.send("POST", "/v1/responses", body)
        ended = await wait_ended(house, queued.body["id"])
        item = {"type": "additional_tools", "tools": tools}
        error = await house.refuse(
            input=[{**item, "tools": [{**tools[0], "authorization": None, "headers": None}]}]
        )
        assert error["param"] == "input[0].tools[0].server_url"
        files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        assert "query-token" not in json.dumps([made, queued.body, ended])
        assert not any(b"query-token" in content for content in files)

    run(tmp_path, [ASK_WEATHER, "4.", ASK_WEATHER, "4."], story)


def test_an_approved_call_survives_a_restart_of_the_server(tmp_path: Path, server: McpServerThread) -> None:
    """Ours: what waits for a person is in the store; the credentials come with the request."""

    async def story() -> None:
        tools = [declare(server, require_approval="always")]
        async with play([ASK_SEND, "Done."]) as upstream:
            async with open_house(tmp_path, upstream) as house:
                first = await house.make(input="Send it.", tools=tools)
            asked = pick(first, "mcp_approval_request")
            answer = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
            async with open_house(tmp_path, upstream) as house:
                second = await house.make(input=[answer], tools=tools, previous_response_id=first["id"])
                assert pick(second, "mcp_call")["output"] == "Sent."
        assert server.asked == ["list", "call send"]

    asyncio.run(story())


@STREAMS
def test_secrets_are_nowhere(
    tmp_path: Path, server: McpServerThread, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Decided: credentials are cut before anything is stored; neither answers nor logs hold them."""
    caplog.set_level(logging.DEBUG)

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="Weather?", tools=[declare(server)])
        background = await house.client.send(
            "POST",
            "/v1/responses",
            {
                "model": "fake-model",
                "input": "Weather?",
                "tools": [declare(server)],
                "background": True,
                "stream": False,
            },
        )
        ended = await wait_ended(house, background.body["id"])
        assert pick(ended, "mcp_call")["output"] == "4 degrees in Oslo"
        listed = await house.list_items(made["id"])
        window = await house.get(f"/v1/responses/{made['id']}/window")
        told = json.dumps([made, house.events, background.body, ended, listed, window])
        sent = b"".join(asked.body for asked in house.upstream.asked).decode()
        files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        for secret in (TOKEN, HEADER_SECRET):
            assert secret not in told
            assert secret not in sent
            assert secret not in caplog.text
            assert not any(secret.encode() in content for content in files)
        assert made["tools"][0]["server_url"] == server.url

    run(tmp_path, [ASK_WEATHER, "4.", ASK_WEATHER, "4."], story)


@STREAMS
def test_a_server_that_is_down_does_not_fail_the_response(
    tmp_path: Path, server: McpServerThread, stream: bool
) -> None:
    """Ours: its list says why, and the model answers without its tools."""
    tool = declare(server)
    server.stop()

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="Weather?", tools=[tool])
        assert list_kinds(made) == ["mcp_list_tools", "message"]
        listing = made["output"][0]
        assert listing["tools"] == []
        assert listing["error"]
        assert list_codes(made) == ["mcp_listing_failed"]
        assert house.told == []
        if stream:
            assert "response.mcp_list_tools.failed" in house.kinds

    run(tmp_path, ["I do not know."], story)


def test_a_wrong_token_is_told_without_it(tmp_path: Path, server: McpServerThread) -> None:
    """Ours: the status, and no secret."""

    async def story(house: House) -> None:
        made = await house.make(input="Weather?", tools=[declare(server, authorization="wrong-token-1234")])
        assert "401" in made["output"][0]["error"]
        assert "wrong-token" not in json.dumps(made)

    run(tmp_path, ["I do not know."], story)


@STREAMS
def test_only_allowed_tools_are_offered(tmp_path: Path, server: McpServerThread, stream: bool) -> None:
    """Spec: allowed_tools, by name and by what a tool says of itself; another allowance lists anew."""

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="?", tools=[declare(server, allowed_tools=["weather"])])
        assert house.told == ["home__weather"]
        assert "allowed_tools" not in first["output"][0]
        reads = {"read_only": True}
        second = await house.make(
            stream=stream,
            input="?",
            tools=[declare(server, allowed_tools=reads)],
            previous_response_id=first["id"],
        )
        assert house.told == ["home__weather"]
        assert list_kinds(second) == ["mcp_list_tools", "message"]
        third = await house.make(
            stream=stream, input="?", tools=[declare(server)], previous_response_id=second["id"]
        )
        assert list_kinds(third) == ["mcp_list_tools", "message"]
        assert len(house.told) == 3

    run(tmp_path, ["a", "b", "c"], story)


def test_background_rounds_call_mcp_tools_and_are_streamed(tmp_path: Path, server: McpServerThread) -> None:
    """Ours: the credentials live in memory while the round does."""

    async def story(house: House) -> None:
        made = await house.make(stream=True, background=True, input="Weather?", tools=[declare(server)])
        assert list_kinds(made) == ["mcp_list_tools", "mcp_call", "message"]
        assert "response.mcp_call.completed" in house.kinds

    run(tmp_path, [ASK_WEATHER, "4."], story)


def test_private_servers_are_not_called_for_tenants(tmp_path: Path, server: McpServerThread) -> None:
    """Ours: `mcp.private_addresses`; a server for many does not reach into its own network."""

    async def story(house: House) -> None:
        made = await house.make(input="?", tools=[declare(server)])
        assert list_codes(made) == ["mcp_listing_failed"]
        assert server.headers == []

    run(tmp_path, ["a"], story, settings={"mcp": {"private_addresses": "refuse"}})


def test_the_model_may_call_many_tools_in_one_response(tmp_path: Path, server: McpServerThread) -> None:
    """Spec: parallel calls in one generation, then another generation; all results are seen."""

    async def story(house: House) -> None:
        made = await house.make(stream=True, input="?", tools=[declare(server)])
        assert list_kinds(made) == ["mcp_list_tools", "mcp_call", "mcp_call", "mcp_call", "message"]
        assert server.calls == ["weather", "send", "weather"]
        results = [m["content"] for m in house.messages if m["role"] == "tool"]
        assert results == ["4 degrees in Oslo", "Sent.", "4 degrees in Oslo"]
        assert made["usage"]["input_tokens"] == 100 + 200 + 300

    run(tmp_path, [[*ASK_WEATHER, *ASK_SEND], ASK_WEATHER, "ok"], story)


@STREAMS
def test_a_forced_tool_is_called_first(tmp_path: Path, server: McpServerThread, stream: bool) -> None:
    """Spec: `tool_choice` of type mcp, with the name of a tool and without."""

    async def story(house: House) -> None:
        for choice in ({"name": "weather"}, {}):
            made = await house.make(
                stream=stream,
                input="?",
                tools=[declare(server)],
                tool_choice={"type": "mcp", "server_label": "home", **choice},
            )
            assert list_kinds(made) == ["mcp_list_tools", "mcp_call", "message"]
            first, second = house.upstream.asked[-2:]
            assert "tool_choice" in first.json
            assert second.json.get("tool_choice", "auto") == "auto"

    run(tmp_path, [ASK_WEATHER, "4.", ASK_WEATHER, "4."], story)


@STREAMS
def test_a_forced_tool_that_is_not_there_is_no_silent_answer(
    tmp_path: Path, server: McpServerThread, stream: bool
) -> None:
    """Ours: what cannot be forced is not left to chance; the model is not asked."""
    server.stop()

    async def story(house: House) -> None:
        for choice in ({"type": "mcp", "server_label": "home", "name": "weather"}, "required"):
            body: dict[str, Any] = {
                "model": "fake-model",
                "input": "?",
                "tools": [declare(server)],
                "tool_choice": choice,
            }
            if stream:
                events = await house.client.stream(**body)
                assert events[-1]["type"] == "response.failed"
                assert "demands a call" in events[-1]["response"]["error"]["message"]
            else:
                assert "demands a call" in (await house.client.refuse(502, **body))["message"]

    run(tmp_path, [], story)


@pytest.mark.parametrize("secret", [{"authorization": TOKEN}, {"headers": {"X-Secret": HEADER_SECRET}}])
@pytest.mark.parametrize("kind", ["additional_tools", "tool_search_output"])
def test_items_hold_no_credentials(
    tmp_path: Path, server: McpServerThread, kind: str, secret: dict[str, Any]
) -> None:
    """Decided: credentials are never stored; items are stored as they came, so there they are refused."""
    bare = {key: value for key, value in declare(server).items() if key not in ("authorization", "headers")}
    item = {"type": kind, "tools": [{**bare, **secret}]}

    async def story(house: House) -> None:
        error = await house.refuse(input=[item, {"role": "user", "content": "?"}])
        name = next(iter(secret))
        assert (error["param"], error["code"]) == (f"input[0].tools[0].{name}", "invalid_value")
        made = await house.client.send("POST", "/v1/conversations", {"items": [item]})
        assert (made.status, made.error["param"]) == (400, f"items[0].tools[0].{name}")

    run(tmp_path, [], story)


def test_the_request_s_own_declaration_brings_the_credentials(
    tmp_path: Path, server: McpServerThread
) -> None:
    """Ours: a server that an item brought, declared again by the request, is the request's."""
    bare = {key: value for key, value in declare(server).items() if key not in ("authorization", "headers")}
    item = {"type": "additional_tools", "role": "developer", "tools": [bare]}

    async def story(house: House) -> None:
        made = await house.make(input=[item, {"role": "user", "content": "?"}], tools=[declare(server)])
        assert pick(made, "mcp_call")["output"] == "4 degrees in Oslo"
        again = await house.make(input="?", tools=[declare(server)], previous_response_id=made["id"])
        assert pick(again, "mcp_call")["output"] == "4 degrees in Oslo"
        assert server.asked == ["list", "call weather", "call weather"]

    run(tmp_path, [ASK_WEATHER, "4.", ASK_WEATHER, "4."], story)


def test_two_servers_keep_the_order_of_their_tools(tmp_path: Path, server: McpServerThread) -> None:
    """Ours: the bytes of the tools are the same in every round, whichever server was listed when."""

    async def story(house: House) -> None:
        zoo, home = declare(server, server_label="zoo"), declare(server)
        first = await house.make(input="?", tools=[home])
        second = await house.make(input="?", tools=[zoo, home], previous_response_id=first["id"])
        told = house.told
        assert told[0].startswith("zoo__")
        await house.make(input="?", tools=[zoo, home], previous_response_id=second["id"])
        assert house.told == told

    run(tmp_path, ["a", "b", "c"], story)


async def wait_ended(house: House, response_id: str) -> dict[str, Any]:
    """The response once it has ended."""
    async with asyncio.timeout(20):
        while True:
            read: dict[str, Any] = await house.get(f"/v1/responses/{response_id}")
            if read["status"] not in ("queued", "in_progress"):
                return read
            await asyncio.sleep(0.01)
