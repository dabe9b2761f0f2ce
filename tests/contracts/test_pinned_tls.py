"""A connection to a checked address still proves the name: TLS is asked for the name, not for the address."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from antiphon.hosted import Fetched, FetchError, McpError, McpResult, McpServer
from antiphon.hosted.addresses import AddressRules
from antiphon.hosted.fetching import HttpFetcher
from antiphon.hosted.mcp import SdkMcpConnector
from antiphon.hosted.mcp_limits import McpLimits

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
NAME = "named.test"
RULES = AddressRules(hosts=(NAME, "other.test"))
WAIT_S = 20


async def lookup(_host: str, _port: int) -> Sequence[str]:
    return ["127.0.0.1"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of its own for `NAME` alone, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return path


async def answer(request: web.Request) -> web.StreamResponse:
    """An image for GET, an MCP server for POST."""
    assert request.headers["host"].startswith(NAME)
    if request.method != "POST":
        return web.Response(body=PNG, content_type="image/png")
    message = await request.json()
    if "id" not in message:
        return web.Response(status=202)
    server = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "serverInfo": {"name": "a", "version": "1"},
    }
    results = {"initialize": server, "tools/call": {"content": [{"type": "text", "text": "done"}]}}
    body = {"jsonrpc": "2.0", "id": message["id"]}
    result = results.get(message["method"])
    if result is None:
        return web.json_response({**body, "error": {"code": -32601, "message": "Method not found"}})
    return web.json_response({**body, "result": result})


@asynccontextmanager
async def serve(certificate: Path) -> AsyncIterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def trust(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


def fetch(certificate: Path, host: str, tls: ssl.SSLContext | None) -> Fetched:
    async def run() -> Fetched:
        async with asyncio.timeout(WAIT_S), serve(certificate) as port:
            fetcher = HttpFetcher(
                rules=RULES, max_bytes=1_000, timeout_s=10, max_redirects=0, lookup=lookup, tls=tls
            )
            try:
                return await fetcher.fetch(f"https://{host}:{port}/x")
            finally:
                await fetcher.close()

    return asyncio.run(run())


def call(certificate: Path, host: str, tls: ssl.SSLContext | None) -> McpResult:
    async def run() -> McpResult:
        async with asyncio.timeout(WAIT_S), serve(certificate) as port:
            connector = SdkMcpConnector(rules=RULES, limits=McpLimits(), lookup=lookup, tls=tls)
            connection = await connector.connect(McpServer(label="a", url=f"https://{host}:{port}/mcp"))
            try:
                return await connection.call("any", {})
            finally:
                await connection.close()

    return asyncio.run(run())


def test_a_certificate_for_the_name_is_good(certificate: Path) -> None:
    """RFC 9525: the name of the URL is what the certificate must show."""
    assert fetch(certificate, NAME, trust(certificate)) == Fetched("image/png", PNG)
    assert call(certificate, NAME, trust(certificate)) == McpResult("done")


def test_a_certificate_for_another_name_is_not(certificate: Path) -> None:
    """RFC 9525: that the address was checked proves nothing of who answers there."""
    with pytest.raises(FetchError, match="the connection failed"):
        fetch(certificate, "other.test", trust(certificate))
    with pytest.raises(McpError, match="cannot be reached"):
        call(certificate, "other.test", trust(certificate))


def test_a_certificate_that_nobody_vouches_for_is_not(certificate: Path) -> None:
    """Ours: without a context of its own each uses the system's certificates."""
    with pytest.raises(FetchError):
        fetch(certificate, NAME, None)
    with pytest.raises(McpError):
        call(certificate, NAME, None)


def test_the_certificate_names_no_address(certificate: Path) -> None:
    """Guards the tests above: an address in the certificate would prove nothing."""
    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAME]
    assert ipaddress.ip_address("127.0.0.1") not in names.get_values_for_type(x509.IPAddress)
