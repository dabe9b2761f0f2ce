"""The part of the honest double that works in the background: jobs that end after they were looked at a few times.

It has no clock: looking is what makes time pass. Invariant: each method under "seams" is one thing that a server
can get wrong.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from antiphon.checker.doubles.answering import Record
from antiphon.checker.doubles.compacting import CompactingDouble
from antiphon.checker.doubles.conversing import Conversation
from antiphon.checker.doubles.rules import list_items
from antiphon.checker.doubles.toy import is_long_task
from antiphon.protocol.errors import RequestError

#: A job ends after so many looks: a short one, and one that tells a long story.
LOOKS, LONG_LOOKS = 2, 1000

Event = dict[str, Any]


class Job(msgspec.Struct):
    """A response in the background."""

    response: dict[str, Any]
    looks_left: int
    streamed: bool
    record: Record | None = None
    conversation: Conversation | None = None
    status: str = "queued"

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.status in ("queued", "in_progress")


class WorkingDouble(CompactingDouble):
    """Runs responses in the background."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, Job] = {}

    # The seams.

    def begin(self, job: Job) -> dict[str, Any]:
        """The first answer to a background request."""
        return self.open_response(job.response, "queued")

    def cancel(self, job: Job) -> dict[str, Any]:
        """Ends a job; again is the same."""
        if job.status not in ("queued", "in_progress", "cancelled"):
            raise RequestError(f"Cannot cancel a {job.status} response.")
        job.status = "cancelled"
        self.release(job)
        return self.show_job(job)

    def refuse_cancel(self, record: Record) -> Any:
        """Refuses to cancel what never was in the background."""
        raise RequestError("Cannot cancel a synchronous response.")

    def refuse_stream(self, record: Record) -> Iterator[Event]:
        """Refuses to stream what was not streamed from the background."""
        raise RequestError("This response cannot be streamed.", param="stream")

    def stream_job(self, job: Job) -> Iterator[Event]:
        """The whole stream of a job, from created to its end."""
        queued = self.open_response(job.response, "queued")
        running = self.open_response(job.response, "in_progress")
        yield {"type": "response.created", "response": queued}
        yield {"type": "response.queued", "response": queued}
        yield {"type": "response.in_progress", "response": running}
        for index, item in enumerate(job.response["output"]):
            yield from self.stream_item(index, item)
        yield {"type": f"response.{job.response['status']}", "response": job.response}

    def choose_tail(self, events: list[Event], after: int) -> list[Event]:
        """What comes after an event."""
        return events[after + 1 :]

    # The machinery.

    def start_job(self, body: dict[str, Any]) -> Job:
        """A request begun in the background: its answer is made at once, and shown later."""
        conversation = self.find_named(body)
        response = self.respond({**body, "conversation": body.get("conversation")})
        record = self.records.get(response["id"])
        if conversation is not None and record is not None:
            # What was appended shows at the end.
            added = len(record.given) + len(response["output"])
            conversation.items = conversation.items[:-added]
            conversation.is_locked = True
        looks = LONG_LOOKS if is_long_task(list_items(body.get("input"))) else LOOKS
        job = Job(response, looks, bool(body.get("stream")), record, conversation)
        self.jobs[response["id"]] = job
        return job

    def look(self, job: Job) -> None:
        """Lets time pass for a job."""
        if not job.is_running:
            return
        job.looks_left -= 1
        job.status = "in_progress"
        if job.looks_left <= 0:
            self.end(job)

    def end(self, job: Job) -> None:
        """The job's own end."""
        if not job.is_running:
            return
        job.status = job.response["status"]
        if job.conversation is not None and job.record is not None:
            job.conversation.items.extend([*job.record.given, *job.response["output"]])
        self.release(job)

    def release(self, job: Job) -> None:
        """Lets go of the conversation."""
        if job.conversation is not None:
            job.conversation.is_locked = False

    def show_job(self, job: Job) -> dict[str, Any]:
        """The response as far as it is."""
        if job.status == job.response["status"]:
            return job.response
        return self.open_response(job.response, job.status)
