"""Endpoints tried against real servers on loopback: names, TCP, TLS, proxies, statuses."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote.agent.endpoints import _try_all, attempt, read_endpoints
from tests.support.children import own_children
from tests.support.patience import LONG

HOST = "localhost"
needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")


@contextlib.contextmanager
def server(answer: Any) -> Iterator[int]:
    """A server whose connections are given to `answer`; yields its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    def talk(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def says(text: str, heard: list[str] | None = None) -> Any:
    """A server that answers each request with this text."""

    def answer(connection: Any) -> None:
        request = connection.recv(4096).decode("latin-1")
        if heard is not None:
            heard.append(request)
        connection.sendall(text.encode())

    return answer


def tried(url: tuple[str, str, int, str], **variables: str) -> tuple[list[Any], list[str]]:
    """The result of one try, and the steps that it came to."""
    steps: list[str] = []
    return attempt(("", *url), variables, steps.append), steps


# ---------------------------------------------------------------- without TLS


def test_a_server_that_answers_is_reached() -> None:
    heard: list[str] = []
    with server(says("HTTP/1.1 200 OK\r\n\r\n", heard)) as port:
        result, steps = tried(("http", HOST, port, "/v2/"))
    assert (result, steps) == (["ok", 200, ""], ["name", "TCP", "status"])
    assert heard[0].startswith(f"GET /v2/ HTTP/1.1\r\nHost: {HOST}:{port}\r\n")


def test_tcp_sends_nothing() -> None:
    with server(lambda connection: None) as port:
        assert tried(("tcp", HOST, port, "")) == (["ok", None, ""], ["name", "TCP"])


def test_a_name_that_does_not_exist() -> None:
    (word, step, seen, proxy), _ = tried(("https", "no-such-host.invalid", 443, ""))
    assert (word, step, proxy) == ("failed", "name", "")
    assert seen.startswith("no-such-host.invalid: ")


def test_a_port_without_a_server() -> None:
    with server(lambda connection: None) as port:
        pass
    (word, step, seen, _), steps = tried(("https", "127.0.0.1", port, ""))
    assert (word, step, steps) == ("failed", "TCP", ["name", "TCP"])
    assert seen == f"127.0.0.1 port {port}: Connection refused"


@pytest.mark.parametrize(
    ("text", "seen"),
    [("", "closed without an answer"), ("SSH-2.0-x\r\n", "no HTTP answer: 'SSH-2.0-x'")],
)
def test_what_is_no_http(text: str, seen: str) -> None:
    with server(says(text)) as port:
        assert tried(("http", HOST, port, ""))[0] == ["failed", "status", seen, ""]


@pytest.mark.parametrize("status", [204, 302, 401, 503])
def test_the_status_is_told(status: int) -> None:
    with server(says(f"HTTP/1.0 {status}\r\n\r\n")) as port:
        assert tried(("http", HOST, port, ""))[0] == ["ok", status, ""]


# ---------------------------------------------------------------- TLS


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority and its certificates, made here: good, expired, future, other."""
    folder = tmp_path_factory.mktemp("tls")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "9",
        "-subj", "/CN=authority", "-addext", "keyUsage=critical,keyCertSign",
    )  # fmt: skip
    (folder / "index.txt").touch()
    (folder / "serial").write_text("01\n")
    for name, host, begins, ends in (
        ("good", HOST, "20200101000000Z", "20400101000000Z"),
        ("expired", HOST, "20200101000000Z", "20210101000000Z"),
        ("future", HOST, "20390101000000Z", "20400101000000Z"),
        ("other", "other.example", "20200101000000Z", "20400101000000Z"),
    ):
        (folder / f"{name}.cnf").write_text(
            "[ca]\ndefault_ca=x\n[x]\ndatabase=index.txt\nserial=serial\nnew_certs_dir=.\n"
            "default_md=sha256\npolicy=p\nunique_subject=no\nx509_extensions=e\n[p]\n"
            f"commonName=supplied\n[e]\nsubjectAltName=DNS:{host}\n"
        )
        openssl(
            folder, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr",
            "-subj", f"/CN={name}",
        )  # fmt: skip
        openssl(
            folder, "ca", "-batch", "-config", f"{name}.cnf", "-cert", "ca.pem", "-keyfile",
            "ca.key", "-in", f"{name}.csr", "-out", f"{name}.pem", "-notext",
            "-startdate", begins, "-enddate", ends,
        )  # fmt: skip
    return folder


def secure(folder: Path, name: str, text: str = "HTTP/1.1 200 OK\r\n\r\n") -> Any:
    """A server with one of the certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            says(text)(secured)

    return answer


@needs_openssl
@pytest.mark.parametrize(
    ("name", "step", "seen"),
    [
        ("expired", "TLS time", "certificate has expired"),
        ("future", "TLS time", "certificate is not yet valid"),
        ("other", "TLS name", "Hostname mismatch, certificate is not valid for 'localhost'."),
    ],
)
def test_a_certificate_that_is_wrong(authority: Path, name: str, step: str, seen: str) -> None:
    with server(secure(authority, name)) as port:
        result, steps = tried(
            ("https", HOST, port, ""), REQUESTS_CA_BUNDLE=str(authority / "ca.pem")
        )
    assert (result, steps) == (["failed", step, seen, ""], ["name", "TCP", "TLS"])


@needs_openssl
@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"])
def test_the_authority_of_the_job_counts(
    authority: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with server(secure(authority, "good")) as port:
        bundle = {variable: str(authority / "ca.pem")}
        assert tried(("https", HOST, port, ""), **bundle)[0] == ["ok", 200, ""]
        (word, step, seen, _), _ = tried(("https", HOST, port, ""))
        assert (word, step) == ("failed", "TLS chain")
        assert "unable to get local issuer certificate" in seen
        (word, step, seen, _), _ = tried(("https", HOST, port, ""), REQUESTS_CA_BUNDLE="/gone")
        expected = "REQUESTS_CA_BUNDLE=/gone: No such file or directory"
        assert (word, step, seen) == ("failed", "TLS chain", expected)


def test_a_server_without_tls() -> None:
    with server(says("HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        assert tried(("https", HOST, port, ""))[0][:2] == ["failed", "TLS"]


# ---------------------------------------------------------------- proxies


def tunnel(heard: list[str], answer: str = "HTTP/1.1 200 Connection established\r\n\r\n") -> Any:
    """A proxy that connects as CONNECT says."""

    def serve(connection: socket.socket) -> None:
        request = connection.recv(4096).decode("latin-1")
        heard.append(request)
        connection.sendall(answer.encode())
        if " 200 " not in answer:
            return
        host, port = request.split()[1].rsplit(":", 1)
        with socket.create_connection((host, int(port))) as other:
            back = threading.Thread(target=pump, args=(other, connection), daemon=True)
            back.start()
            pump(connection, other)
            back.join()

    return serve


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(4096):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@needs_openssl
def test_https_goes_through_the_proxy_of_the_environment(authority: Path) -> None:
    heard: list[str] = []
    with server(secure(authority, "good")) as port, server(tunnel(heard)) as proxy:
        result, steps = tried(
            ("https", HOST, port, ""),
            HTTPS_PROXY=f"http://alice:s%40e@127.0.0.1:{proxy}",
            SSL_CERT_FILE=str(authority / "ca.pem"),
        )
    assert result == ["ok", 200, f"http://127.0.0.1:{proxy}"]
    assert steps == ["name", "TCP", "proxy", "TLS", "status"]
    assert heard[0].startswith(f"CONNECT {HOST}:{port} HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic YWxpY2U6c0Bl\r\n" in heard[0]


def test_a_proxy_that_refuses_is_the_step_that_failed() -> None:
    heard: list[str] = []
    refusal = "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"
    with server(tunnel(heard, refusal)) as proxy:
        result, _ = tried(("https", "hub.invalid", 443, ""), https_proxy=f"127.0.0.1:{proxy}")
    expected = ["failed", "proxy", "HTTP 407 Proxy Authentication Required"]
    assert result == [*expected, f"http://127.0.0.1:{proxy}"]


def test_http_asks_the_proxy_for_the_whole_url() -> None:
    heard: list[str] = []
    with server(says("HTTP/1.1 200 OK\r\n\r\n", heard)) as proxy:
        result, _ = tried(("http", "hub.invalid", 80, "/a"), http_proxy=f"http://127.0.0.1:{proxy}")
    assert result == ["ok", 200, f"http://127.0.0.1:{proxy}"]
    assert heard[0].startswith("GET http://hub.invalid/a HTTP/1.1\r\nHost: hub.invalid\r\n")


@pytest.mark.parametrize("no_proxy", ["*", HOST, "10.0.0.0/8, localhost", f"{HOST}:0"])
def test_no_proxy_leads_past_it(no_proxy: str) -> None:
    with server(says("HTTP/1.1 200 OK\r\n\r\n")) as port:
        no_proxy = no_proxy.replace(":0", f":{port}")
        result, _ = tried(
            ("http", HOST, port, ""), http_proxy="http://127.0.0.1:1", no_proxy=no_proxy
        )
    assert result == ["ok", 200, ""]


def test_a_kind_of_proxy_that_is_not_spoken_is_not_tried() -> None:
    result, _ = tried(("https", HOST, 443, ""), all_proxy="socks5://127.0.0.1:1080")
    assert result == ["no", "not_applicable", "a proxy of the kind socks5 is not tried"]


# ---------------------------------------------------------------- all together


def test_a_server_that_is_silent_costs_its_limit_once() -> None:
    silence = threading.Event()
    before = own_children()
    with server(lambda connection: silence.wait(LONG)) as port:
        url = ("", "http", "127.0.0.1", port, "")
        began = time.monotonic()
        results = _try_all([(url, {})] * 20, 3.0)
        seconds = time.monotonic() - began
        silence.set()
    assert results == [["failed", "status", "no answer within 3 s", ""]] * 20
    assert seconds < 30.0  # and not 60
    assert own_children() <= before


def test_each_endpoint_is_tried_in_the_sessions_of_the_user() -> None:
    with server(says("HTTP/1.1 200 OK\r\n\r\n")) as port:
        url = f"http://127.0.0.1:{port}"
        answer = read_endpoints(None, False, (url, "http", "127.0.0.1", port, ""), seconds=LONG)
    assert answer["endpoints"] == [url]
    assert answer["tries"][0] == [0, 0, ["ok", 200, ""]]
    assert answer["ways"][0]["paths"] == ["login shell", "ssh command"]
