"""Files and images in items, made readable for a chat model: files as text, images as data URLs.

It knows parts and items, not models: whether the model sees images is asked elsewhere. Invariant: an item's
bytes stay as they came, except that an image fetched from the web stands in them as what was fetched; the same
bytes always give the same view.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from antiphon.engine.files import (
    DATA_URL_HINT,
    FILE_TEXT_CHARS,
    ContentError,
    FileForm,
    FileReader,
    UnreadableFileError,
    check_image,
    find_form,
    make_image_url,
    show_name,
)
from antiphon.hosted import Fetched, Fetcher, HostedToolError
from antiphon.protocol.checks import missing_parameter
from antiphon.protocol.content import InputAudio, InputFile, InputImage, InputText, InputVideo, Part
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import CustomToolCallOutput, FunctionCallOutput, Item, Message

#: All text that the files of one request may come to, in characters.
REQUEST_TEXT_CHARS = FILE_TEXT_CHARS
#: Different images that are fetched for one request, how many at a time, and how long all of them may take.
FETCHES_AT_MOST = 50
FETCHES_AT_ONCE = 4
FETCHES_S = 60.0
#: Bytes of all images that are fetched for one request; one more is begun only under it.
FETCHED_BYTES_AT_MOST = 64 * 1024 * 1024
#: A check of 20 MB takes 15 ms; after one of more than this others have their turn.
LONG_CHECK_LENGTH = 1_000_000
_MORE_THAN_TEXT = frozenset({InputImage, InputFile, InputAudio, InputVideo})
_NAMES: dict[type[Part], str] = {InputImage: "image", InputAudio: "audio", InputVideo: "video"}

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_parts = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_encode = msgspec.json.encode


class ContentReader:
    """Resolves the contents of items; one for an engine, since it remembers the texts of files."""

    def __init__(self, fetcher: Fetcher | None = None, files: FileReader | None = None) -> None:
        self._fetcher = fetcher
        self._files = files or FileReader()

    async def resolve(
        self, items: list[Item], *, where: str, new: bool, warnings: list[tuple[str, str]] | None = None
    ) -> list[Item]:
        """The items as a chat model is to see them; the same list when they hold text alone.

        Of new items (found at the path `where`) everything that cannot be shown is refused: `RequestError`,
        or `FilesBusyError`. Stored ones were accepted before, so there the text says what is missing.
        """
        found = [position for position, item in enumerate(items) if _needs_reading(item.value)]
        if not found:
            return items
        reading = _Reading(self._fetcher, self._files, new=new)
        resolved = list(items)
        for position in found:
            resolved[position] = await reading.read_item(items[position], f"{where}[{position}]")
        if reading.to_fetch:
            # Last, so that a request that is refused anyway fetches nothing.
            images = await reading.fetch_images()
            for position in found:
                resolved[position] = _put_images(resolved[position], images)
        if warnings is not None:
            warnings += reading.warnings
        return resolved


def _needs_reading(value: Any) -> bool:
    kind = type(value)
    if kind is Message:
        content = value.content
    elif kind is FunctionCallOutput or kind is CustomToolCallOutput:
        content = value.output
    else:
        return False
    if type(content) is str:
        return False
    # A loop, which is twice as fast as any() on the few parts that a message has.
    for part in content:  # noqa: SIM110
        if type(part) in _MORE_THAN_TEXT:
            return True
    return False


class _Reading:
    """The contents of one request, or of one stored round, within their limits."""

    def __init__(self, fetcher: Fetcher | None, files: FileReader, *, new: bool) -> None:
        self._fetcher = fetcher
        self._files = files
        self._new = new
        self._chars = 0
        self._fetched_bytes = 0
        #: URL -> the path of the first part that names it.
        self.to_fetch: dict[str, str] = {}
        self.warnings: list[tuple[str, str]] = []

    async def read_item(self, item: Item, where: str) -> Item:
        """The item with another view, or as it is when nothing in it has to change."""
        value: Any = item.value
        field = _name_field(value)
        # Chat models see images in user messages and tool results alone.
        sees = not isinstance(value, Message) or value.role == "user"
        parts: Sequence[Part] = getattr(value, field)
        read = [
            await self._read_part(part, f"{where}.{field}[{index}]", sees=sees)
            for index, part in enumerate(parts)
        ]
        if all(after is before for after, before in zip(read, parts, strict=True)):
            return item
        return Item(item.type, item.raw, msgspec.structs.replace(value, **{field: read}))

    async def _read_part(self, part: Part, where: str, *, sees: bool) -> Part:
        try:
            if isinstance(part, InputFile):
                return await self._read_file(part, where, sees=sees)
            if isinstance(part, InputImage):
                return await self._read_image(part, where, sees=sees)
            if isinstance(part, InputAudio | InputVideo):
                reason = f"this server reads no {_NAMES[type(part)]}; send what is said in it as text"
                raise ContentError(reason, param=where, code="unsupported_parameter")
        except RequestError as error:
            if self._new:
                raise
            return InputText(text=_tell_missing(part, error))
        return part

    # Images

    async def _read_image(self, part: InputImage, where: str, *, sees: bool) -> Part:
        if part.file_id is not None:
            raise _refuse_file_id(f"{where}.file_id", DATA_URL_HINT)
        url = part.image_url
        path = f"{where}.image_url"
        if url is None:
            raise missing_parameter(path)
        if not sees:
            raise _refuse_unseen(where)
        if url[:8].lower().startswith(("http://", "https://")):
            self._note_url(url, path)
        else:
            await _check_image(url, path)
        return part

    def _note_url(self, url: str, path: str) -> None:
        """An image on the web is fetched once, when it is new; for what is stored nobody is asked again."""
        if not self._new:
            raise ContentError(f"it was never fetched from {url}", param=path, code="invalid_image_url")
        if self._fetcher is None:
            reason = (
                f"this server fetches no images; {DATA_URL_HINT}, or ask whoever runs the server to set "
                "'fetch.images'"
            )
            raise ContentError(reason, param=path, code="invalid_image_url")
        self.to_fetch.setdefault(url, path)
        if len(self.to_fetch) > FETCHES_AT_MOST:
            reason = f"at most {FETCHES_AT_MOST} images are fetched for one request; {DATA_URL_HINT}"
            raise ContentError(reason, param=path, code="invalid_image_url")

    async def fetch_images(self) -> dict[str, str]:
        """URL -> data URL of all images on the web; raises for the first that cannot be had."""
        gate = asyncio.Semaphore(FETCHES_AT_ONCE)
        fetched: dict[str, Fetched | HostedToolError] = {}
        try:
            async with asyncio.timeout(FETCHES_S), asyncio.TaskGroup() as group:
                for url in self.to_fetch:
                    group.create_task(self._fetch(url, gate, fetched))
        except TimeoutError:
            late = next((path for url, path in self.to_fetch.items() if url not in fetched), "input")
            reason = f"the images at URLs took more than {FETCHES_S:g} seconds in all"
            raise ContentError(reason, param=late, code="failed_to_download_image") from None
        images: dict[str, str] = {}
        for url, path in self.to_fetch.items():
            found = fetched.get(url)
            if found is None:
                reason = f"the images at URLs have more than {FETCHED_BYTES_AT_MOST} bytes in all"
                raise ContentError(reason, param=path, code="image_file_too_large")
            if isinstance(found, HostedToolError):
                code = found.code or "failed_to_download_image"
                raise RequestError(found.message, param=path, code=code) from found
            images[url] = make_image_url(found.body, path)
        return images

    async def _fetch(
        self, url: str, gate: asyncio.Semaphore, fetched: dict[str, Fetched | HostedToolError]
    ) -> None:
        assert self._fetcher is not None
        async with gate:
            if self._fetched_bytes > FETCHED_BYTES_AT_MOST:
                return
            try:
                fetched[url] = found = await self._fetcher.fetch(url)
                self._fetched_bytes += len(found.body)
            except HostedToolError as error:
                fetched[url] = error

    # Files

    async def _read_file(self, part: InputFile, where: str, *, sees: bool) -> Part:
        remedy = "send the file itself as 'file_data' (data:TYPE;base64,...)"
        if part.file_id is not None:
            raise _refuse_file_id(f"{where}.file_id", remedy)
        if part.file_url is not None:
            reason = f"this server fetches no files; {remedy}"
            raise ContentError(reason, param=f"{where}.file_url", code="unsupported_parameter")
        path = f"{where}.file_data"
        if part.file_data is None:
            raise missing_parameter(path)
        try:
            form = find_form(part.file_data, part.filename)
            if form.kind != "image":
                return await self._tell_file(part, part.file_data, form)
        except UnreadableFileError as error:
            raise ContentError(error.message, param=path, code="invalid_value") from error
        if not sees:
            raise _refuse_unseen(where)
        return await _show_image(part, part.file_data, form, path)

    async def _tell_file(self, part: InputFile, data: str, form: FileForm) -> InputText:
        told = await self._files.read(data, form)
        self._chars += len(told.text)
        if self._chars > REQUEST_TEXT_CHARS:
            raise UnreadableFileError(
                f"the files of the request have more than {REQUEST_TEXT_CHARS} characters of text in all; "
                "send fewer of them, or the parts that matter"
            )
        title = _name_file(part)
        if told.blank_pages:
            numbers = _join_numbers(told.blank_pages)
            text = (
                f"In {title} these pages hold no text (they may be scans), so the model saw none: {numbers}."
            )
            self.warnings.append(("file_pages_without_text", text))
        if part.detail in ("low", "high"):
            text = f"The model is told the text of {title}; the detail '{part.detail}' has no effect on it."
            self.warnings.append(("file_detail_left_out", text))
        return InputText(
            text=f"[{title}]\n{told.text}\n[end of {title}]",
            prompt_cache_breakpoint=part.prompt_cache_breakpoint,
        )


async def _show_image(part: InputFile, data: str, form: FileForm, path: str) -> InputImage:
    """An image that came as a file."""
    url = data if form.start else f"data:{form.media_type};base64,{data}"
    await _check_image(url, path)
    return InputImage(image_url=url, detail=part.detail, prompt_cache_breakpoint=part.prompt_cache_breakpoint)


async def _check_image(url: str, path: str) -> None:
    check_image(url, path)
    if len(url) > LONG_CHECK_LENGTH:
        await asyncio.sleep(0)


def _put_images(item: Item, images: dict[str, str]) -> Item:
    """The item with what was fetched in the place of URLs, in its view and in its bytes."""
    value: Any = item.value
    field = _name_field(value)
    parts = list(getattr(value, field))
    fetched: dict[int, str] = {}
    for index, part in enumerate(parts):
        if isinstance(part, InputImage) and part.image_url in images:
            fetched[index] = images[part.image_url]
            parts[index] = msgspec.structs.replace(part, image_url=fetched[index])
    if not fetched:
        return item
    fields = _decode_fields(item.raw)
    raw_parts = _decode_parts(fields[field])
    for index, url in fetched.items():
        raw_parts[index]["image_url"] = msgspec.Raw(_encode(url))
    fields[field] = msgspec.Raw(_encode(raw_parts))
    return Item(item.type, _encode(fields), msgspec.structs.replace(value, **{field: parts}))


def _name_field(value: Any) -> str:
    return "content" if isinstance(value, Message) else "output"


def _name_file(part: InputFile) -> str:
    name = show_name(part.filename)
    return f"file {name}" if name else "file"


def _tell_missing(part: Part, error: RequestError) -> str:
    """What stands in the place of a stored part that cannot be shown; the same whatever path it is read on."""
    what = _name_file(part) if isinstance(part, InputFile) else _NAMES[type(part)]
    return f"[{what}: not shown, {error.reason if isinstance(error, ContentError) else 'it is not there'}]"


def _refuse_file_id(path: str, remedy: str) -> ContentError:
    return ContentError(f"there is no Files API here; {remedy}", param=path, code="unsupported_parameter")


def _refuse_unseen(where: str) -> ContentError:
    reason = "the model is shown no images in system and developer messages; send it in a user message"
    return ContentError(reason, param=where, code="unsupported_parameter")


def _join_numbers(numbers: Iterable[int]) -> str:
    """Numbers as ranges: `(1, 2, 3, 7)` -> `"1-3, 7"`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
