"""Background responses over HTTP: queued, polled, cancelled, streamed and streamed again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from antiphon.store import Record
from antiphon.store.memory import MemoryStore
from tests.scenarios.client import StrictClient, read_frame, read_text
from tests.scenarios.following import cancel, open_again, open_new, poll, queue, read_again
from tests.scenarios.queueing import SCRIPT, TEXT, check, run
from tests.scenarios.serving import GatedBackend, serve

# From queued to its end


def test_a_response_is_queued_then_runs_then_ends(tmp_path: Path) -> None:
    """responses-API section 'Background and cancel': poll until it has ended."""

    async def story(client: StrictClient, backend: GatedBackend) -> None:
        queued = await queue(client, instructions="Be brief.", metadata={"a": "b"})
        assert (queued["output"], queued["usage"], queued["completed_at"]) == ([], None, None)
        assert (queued["background"], queued["store"]) == (True, True)
        await backend.waiting.wait()
        running = (await client.retrieve(queued["id"])).body
        assert running == {**queued, "status": "in_progress"}
        backend.gate.set()
        ended = await poll(client, queued["id"])
        assert read_text(ended) == TEXT
        assert ended["usage"] is not None
        changed = {key for key in ended if ended[key] != queued.get(key)}
        assert changed - {"antiphon"} == {"status", "output", "usage", "completed_at"}
        follow = await client.create(input="what", previous_response_id=ended["id"])
        assert follow["status"] == "completed"

    run(story, gate_at=0)


def test_a_running_response_shows_the_items_that_are_done() -> None:
    """responses-API section 'GET replay / resume': GET returns the current snapshot."""

    async def story(client: StrictClient, backend: GatedBackend) -> None:
        queued = await queue(client)
        await backend.waiting.wait()
        running = (await client.retrieve(queued["id"])).body
        assert [item["type"] for item in running["output"]] == ["reasoning"]
        items = (await client.list_items(queued["id"])).body["data"]
        assert [item["content"][0]["text"] for item in items] == ["go"]
        error = await client.refuse(input="x", previous_response_id=queued["id"])
        assert error["code"] == "previous_response_not_found"
        assert "in_progress" in error["message"]
        backend.gate.set()
        await poll(client, queued["id"])

    # The model's reasoning, then its text: the gate is behind the first words of the text.
    run(story, gate_at=6)


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("refuse", "failed", "invalid_prompt"),
        ("break", "failed", "server_error"),
        ("cut", "incomplete", None),
    ],
)
def test_a_response_that_ends_badly_says_so(text: str, status: str, code: str | None) -> None:
    """responses-API section 'Ending badly'; a refusal of the model server comes after 200 here."""

    async def story(client: StrictClient, _: GatedBackend) -> None:
        ended = await poll(client, (await queue(client, text))["id"])
        assert ended["status"] == status
        assert (ended["error"] or {}).get("code") == code
        assert ended["completed_at"] is None
        async with open_new(client, text) as frames:
            events = check([frame async for frame in frames])
        assert events[-1]["type"] == f"response.{status}"
        assert (await client.retrieve(events[-1]["response"]["id"])).body == events[-1]["response"]

    run(story)


def test_what_cannot_be_kept_cannot_run_in_the_background(tmp_path: Path) -> None:
    """responses-API section 'Background and cancel': it needs `store`."""

    async def story() -> None:
        async with asyncio.timeout(30), serve(tmp_path, SCRIPT) as client:
            error = await client.refuse(input="go", background=True, store=False)
            assert (error["param"], error["code"]) == ("background", "invalid_value")
        sections: Any = {"server": {"data": str(tmp_path / "other"), "zero_retention": True}}
        async with asyncio.timeout(30), serve(tmp_path, SCRIPT, **sections) as client:
            error = await client.refuse(input="go", background=True)
            assert (error["param"], error["code"]) == ("background", "zero_retention")

    asyncio.run(story())


def test_workers_and_queue_are_bounded() -> None:
    """As decided: bounded workers; who comes too late is told to come back."""

    async def story(client: StrictClient, backend: GatedBackend) -> None:
        ids = [(await queue(client))["id"] for _ in range(5)]
        conversation = (await client.send("POST", "/v1/conversations", {})).body["id"]
        answer = await client.post({"input": "go", "background": True, "conversation": conversation})
        assert answer.status == 429
        assert (await client.send("DELETE", f"/v1/conversations/{conversation}")).status == 200
        assert answer.error["code"] == "rate_limit_exceeded"
        assert int(answer.headers["retry-after"]) > 0
        await poll(client, ids[1], "in_progress")
        assert len(backend.asks) == 2
        statuses = [(await client.retrieve(each)).body["status"] for each in ids]
        assert statuses == ["in_progress"] * 2 + ["queued"] * 3
        # An ordinary response needs no worker, and a place that is given up can be taken.
        backend.gate_at = None
        await client.create(input="go")
        assert (await cancel(client, ids[4])).body["status"] == "cancelled"
        ids[4] = (await queue(client))["id"]
        backend.gate.set()
        for each in ids:
            assert (await poll(client, each))["status"] == "completed"
        assert backend.streams_open == 0

    run(story, gate_at=0, workers=2, queue_limit=3)


# Cancelling


def test_a_running_response_is_cancelled_and_keeps_nothing_of_its_output() -> None:
    """responses-API section 'Background and cancel'."""

    async def story(client: StrictClient, backend: GatedBackend) -> None:
        async with open_new(client) as frames:
            seen = [await anext(frames) for _ in range(8)]
            response_id = read_frame(seen[0])["response"]["id"]
            await backend.waiting.wait()
            answer = await cancel(client, response_id)
            seen += [frame async for frame in frames]
        cancelled = answer.body
        assert cancelled["status"] == "cancelled"
        for key, value in (("output", []), ("usage", None), ("error", None), ("completed_at", None)):
            assert cancelled[key] == value
        events = check(seen)
        assert (events[-1]["type"], events[-1]["response"]) == ("response.failed", cancelled)
        assert backend.streams_open == 0
        # Twice is once, and it can be read and streamed again.
        assert (await cancel(client, response_id)).body == cancelled
        assert (await client.retrieve(response_id)).body == cancelled
        assert await read_again(client, response_id) == seen
        error = await client.refuse(input="x", previous_response_id=response_id)
        assert error["code"] == "previous_response_not_found"

    run(story, gate_at=6)


def test_a_queued_response_is_cancelled_before_it_runs() -> None:
    """responses-API section 'Background and cancel'."""

    async def story(client: StrictClient, backend: GatedBackend) -> None:
        first = await queue(client)
        await backend.waiting.wait()
        async with open_new(client) as frames:
            seen = [await anext(frames), await anext(frames)]
            response_id = read_frame(seen[0])["response"]["id"]
            cancelled = (await cancel(client, response_id)).body
            seen += [frame async for frame in frames]
        assert cancelled["status"] == "cancelled"
        assert [event["type"] for event in check(seen)] == [
            "response.created",
            "response.queued",
            "response.failed",
        ]
        backend.gate.set()
        assert (await poll(client, first["id"]))["status"] == "completed"
        assert len(backend.asks) == 1

    run(story, gate_at=0, workers=1)


def test_two_clients_cancel_at_the_same_time() -> None:
    """Ours: both get the cancelled response, and the end is whole."""

    async def story(client: StrictClient, backend: GatedBackend) -> None:
        for running in (True, False):
            backend.waiting.clear()
            queued = await queue(client)
            if running:
                await backend.waiting.wait()
            answers = await asyncio.gather(*(cancel(client, queued["id"]) for _ in range(5)))
            assert [answer.body["status"] for answer in answers] == ["cancelled"] * 5
            assert (await client.retrieve(queued["id"])).body == answers[0].body
        assert (await client.delete(queued["id"])).status == 200

    run(story, gate_at=2)


def test_what_cannot_be_cancelled_says_why() -> None:
    """responses-API section 'Background and cancel'."""

    async def story(client: StrictClient, _: GatedBackend) -> None:
        plain = await client.create(input="go")
        done = await poll(client, (await queue(client))["id"])
        broken = await poll(client, (await queue(client, "break"))["id"])
        cut = await poll(client, (await queue(client, "cut"))["id"])
        for response, text in (
            (plain, "Cannot cancel a synchronous response."),
            (done, "Cannot cancel a completed response."),
            (broken, "Cannot cancel a failed response."),
            (cut, "Cannot cancel an incomplete response."),
        ):
            answer = await cancel(client, response["id"])
            assert answer.status == 400
            assert answer.error == {
                "message": text,
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            }
        await client.delete(done["id"])
        for response_id in (done["id"], "resp_unknown"):
            answer = await cancel(client, response_id)
            assert answer.status == 404
            assert answer.error["message"] == f"Response with id '{response_id}' not found."

    run(story)


def test_cancelling_at_any_moment_leaves_a_whole_stream() -> None:
    """Ours: walked through every point at which the task of the response can stand."""

    async def story(client: StrictClient, backend: GatedBackend) -> None:
        outcomes = set()
        for steps in range(120):
            async with open_new(client) as frames:
                seen = [await anext(frames)]
                response_id = read_frame(seen[0])["response"]["id"]
                for _step in range(steps):
                    await asyncio.sleep(0)
                answer = await cancel(client, response_id)
                seen += [frame async for frame in frames]
            events = check(seen)
            response = (await client.retrieve(response_id)).body
            assert events[-1]["response"] == response
            assert answer.status == (200 if response["status"] == "cancelled" else 400)
            assert await read_again(client, response_id) == seen
            outcomes.add(response["status"])
        assert outcomes == {"cancelled", "completed"}
        assert backend.streams_open == 0

    run(story)


# Streams


def test_a_background_stream_begins_queued_and_ends_like_any_other() -> None:
    """responses-API section 'Queued/background streams'."""

    async def story(client: StrictClient, _: GatedBackend) -> None:
        async with open_new(client) as frames:
            events = check([frame async for frame in frames])
        assert [event["type"] for event in events[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]
        assert events[-1]["type"] == "response.completed"
        assert (await client.retrieve(events[0]["response"]["id"])).body == events[-1]["response"]
        plain = await client.stream(input="go")
        assert [event["type"] for event in plain[2:]] == [event["type"] for event in events[3:]]

    run(story)


def test_a_stream_is_taken_up_behind_any_number_while_it_runs_and_after_its_end() -> None:
    """responses-API section 'GET replay / resume': no gap, no duplicate, and byte for byte what was first read."""

    async def story(client: StrictClient, backend: GatedBackend) -> None:
        async with open_new(client) as frames:
            seen = [await anext(frames) for _ in range(8)]
            response_id = read_frame(seen[0])["response"]["id"]
            await backend.waiting.wait()
            early = [asyncio.create_task(read_again(client, response_id))]
            early += [asyncio.create_task(read_again(client, response_id, number)) for number in range(20)]
            for _ in range(50):
                await asyncio.sleep(0)
            backend.gate.set()
            seen += [frame async for frame in frames]
        numbers = [read_frame(frame)["sequence_number"] for frame in seen]
        assert numbers == list(range(len(seen)))
        assert len(seen) > 20
        assert await early[0] == seen
        for number, task in enumerate(early[1:]):
            assert await task == seen[number + 1 :]
        for number in range(len(seen) + 3):
            assert await read_again(client, response_id, number) == seen[number + 1 :]
        assert await read_again(client, response_id) == seen

    run(story, gate_at=6)


def test_a_reader_that_leaves_stops_nothing_and_goes_on_where_it_was() -> None:
    """responses-API section 'Background and cancel': a disconnect leaves it running."""

    async def story(client: StrictClient, backend: GatedBackend) -> None:
        async with open_new(client) as frames:
            seen = [await anext(frames) for _ in range(5)]
        response_id = read_frame(seen[0])["response"]["id"]
        await backend.waiting.wait()
        async with open_again(client, response_id, 4) as frames:
            seen += [await anext(frames) for _ in range(2)]
        backend.gate.set()
        seen += await read_again(client, response_id, 6)
        assert check(seen)[-1]["response"]["status"] == "completed"

    run(story, gate_at=6)


def test_what_was_not_created_for_it_cannot_be_streamed_again() -> None:
    """responses-API section 'GET replay / resume': background and stream, both."""

    async def story(client: StrictClient, backend: GatedBackend) -> None:
        backend.gate.set()
        plain = await client.create(input="go")
        streamed = (await client.stream(input="go"))[-1]["response"]
        polled = await poll(client, (await queue(client))["id"])
        backend.gate.clear()
        running = await queue(client)
        for response in (plain, streamed, polled, running):
            answer = await client.send("GET", f"/v1/responses/{response['id']}?stream=true")
            assert (answer.status, answer.error["param"]) == (400, "stream")
        unknown = await client.send("GET", "/v1/responses/resp_unknown?stream=true")
        assert (unknown.status, unknown.error["message"]) == (
            404,
            "Response with id 'resp_unknown' not found.",
        )
        for query in (
            "starting_after=1",
            "include_obfuscation=true",
            "stream=yes",
            "stream=true&starting_after=-1",
        ):
            assert (await client.send("GET", f"/v1/responses/{plain['id']}?{query}")).status == 400
        backend.gate.set()

    run(story, gate_at=0)


def test_padding_is_as_the_reader_asks() -> None:
    """responses-API section 'Endpoints', row 2: `include_obfuscation`; without it, as first sent."""

    async def story(client: StrictClient, _: GatedBackend) -> None:
        for padded in (False, True):
            options: dict[str, Any] = {"stream_options": {"include_obfuscation": True}} if padded else {}
            async with open_new(client, **options) as frames:
                seen = [frame async for frame in frames]
            response_id = read_frame(seen[0])["response"]["id"]
            assert await read_again(client, response_id) == seen
            with_it = [
                read_frame(f) for f in await read_again(client, response_id, include_obfuscation="true")
            ]
            without = [
                read_frame(f) for f in await read_again(client, response_id, include_obfuscation="false")
            ]
            for event in with_it:
                assert ("obfuscation" in event) == event["type"].endswith(".delta")
            assert [{k: v for k, v in event.items() if k != "obfuscation"} for event in with_it] == without
            assert not any("obfuscation" in event for event in without)

    run(story)


def test_signs_of_life_are_numbered_and_read_again_like_any_event() -> None:
    """As decided: keep-alives of a background stream are stored; `response.queued` while no worker is free."""

    async def story(client: StrictClient, backend: GatedBackend) -> None:
        first = await queue(client)
        await backend.waiting.wait()
        async with open_new(client) as frames:
            seen = [await anext(frames) for _ in range(4)]
            backend.waiting.clear()
            await cancel(client, first["id"])
            await backend.waiting.wait()
            seen += [await anext(frames) for _ in range(4)]
            backend.gate.set()
            seen += [frame async for frame in frames]
        events = check(seen)
        kinds = [event["type"] for event in events]
        assert kinds[:4] == ["response.created"] + ["response.queued"] * 3
        assert kinds.count("response.in_progress") > 1
        assert await read_again(client, events[0]["response"]["id"]) == seen

    run(story, gate_at=0, workers=1, keep_alive_s=0.01)


def test_events_can_be_streamed_again_for_a_stated_time() -> None:
    """responses-API section 'GET replay / resume': after the window 400; plain GET keeps working."""

    store = MemoryStore()

    async def story(client: StrictClient, _: GatedBackend) -> None:
        for text in ("go", "break"):
            async with open_new(client, text) as frames:
                response = read_frame([frame async for frame in frames][-1])["response"]
            while await store.list_events():
                await asyncio.sleep(0.01)
            answer = await client.send("GET", f"/v1/responses/{response['id']}?stream=true&starting_after=1")
            assert answer.status == 400
            assert answer.error["message"] == (
                "This response can no longer be streamed because it is more than 0.001 minutes old."
            )
            assert (await client.retrieve(response["id"])).body == response

    run(story, store=store, events_s=0.06)


def test_the_time_to_stream_again_begins_with_the_end() -> None:
    """Ours: a response that ran for longer than that can be streamed again when it ends, however it ends."""

    async def story(client: StrictClient, backend: GatedBackend) -> None:
        for ends in ("completed", "cancelled"):
            backend.waiting.clear()
            backend.gate.clear()
            async with open_new(client) as frames:
                seen = [await anext(frames)]
                response_id = read_frame(seen[0])["response"]["id"]
                await backend.waiting.wait()
                store.make_older(response_id, 1000)
                if ends == "cancelled":
                    await cancel(client, response_id)
                backend.gate.set()
                seen += [frame async for frame in frames]
            assert (await poll(client, response_id))["status"] == ends
            assert await read_again(client, response_id) == seen

    store = AgeingStore()
    run(story, gate_at=3, store=store, events_s=500.0)


class AgeingStore(MemoryStore):
    """A store in which responses are older than they are."""

    def __init__(self) -> None:
        super().__init__()
        self._ages: dict[str, int] = {}

    def make_older(self, response_id: str, seconds: int) -> None:
        """This one was created earlier, by the time it is recorded."""
        self._ages[response_id] = seconds

    async def record(self, record: Record, *, conversation: str | None = None) -> None:
        """Keep the round, created earlier."""
        record.created_at -= self._ages.get(record.id, 0)
        await super().record(record, conversation=conversation)
