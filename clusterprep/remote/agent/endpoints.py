"""Whether what the job needs from elsewhere is reached from here, tried as the job's user.

Each endpoint is tried with the proxies and certificates of each launch path, in a child of its own:
a resolver that hangs costs its own endpoint only, and all of them together no more than SECONDS. A
try connects, asks for one status line and closes. It sends nothing that identifies the user, but
for what the environment says to a proxy.
"""

import binascii
import os

from clusterprep.remote.agent.pam import of_sshd
from clusterprep.remote.agent.proxies import (
    PORTS,
    VARIABLES,
    proxy_for,
    setting,
    shown,
    split,
)
from clusterprep.remote.agent.readers import NoAnswer, offer
from clusterprep.remote.agent.shells import account, as_user, sessions, start_up
from clusterprep.remote.agent.side_by_side import run_all

SECONDS = 10.0  # for all tries together
TCP_SECONDS = 3.0  # for one address
ANSWER_SECONDS = 6.0  # for one answer of a proxy or a server
MOST_ADDRESSES = 4  # of one name that are tried
LONGEST = 300  # characters of a reason: a line has to fit into PIPE_BUF
MOST_LINE = 4096  # bytes of a status line that are read
BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # requests takes the first that is set
OPENSSL = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # SSL_CTX_set_default_verify_paths(3)
# X509_V_ERR_… of openssl/x509_vfy.h.
TIME_CODES = (9, 10)  # not yet valid, expired
NAME_CODES = (62, 64)  # another host name, another address


class Failed(Exception):
    """A try that did not succeed: the step that failed, and what was seen."""

    def __init__(self, step, seen):
        Exception.__init__(self, step)
        self.step, self.seen = step, seen


def wants(name):
    """Return whether a variable says how endpoints are reached."""
    return name.lower() in VARIABLES or name in BUNDLES + OPENSSL


def read_endpoints(user, session, *endpoints, seconds=SECONDS):
    """Try endpoints, each (URL, scheme, host, port, path), as `user` (None: who logged in).

    `session` says that this process is an ssh command's. The answer is {"endpoints": [URL], "ways":
    [{"paths", "http", "https", "no_proxy"}], "unasked": {path: [reason, why]}, "tries": [[number of
    the way, number of the endpoint, result]]}. A result is ["ok", status or None, proxy],
    ["failed", step, seen, proxy] or ["no", reason, why].
    """
    entry, given = account(user, session)
    by_pam = of_sshd()
    return as_user(entry, lambda: _answers(entry, given, endpoints, seconds, by_pam))


def _answers(entry, given, endpoints, seconds, by_pam):
    answers = sessions(entry, given, start_up(entry), by_pam, wants)
    if not answers:  # a user who cannot log in has the variables of what starts the job
        answers = {"a bare process": ["ok", {}]}
    ways, unasked = [], {}
    for path, answer in sorted(answers.items()):
        if answer[0] != "ok":
            unasked[path] = [answer[1], answer[2]]
            continue
        for paths, variables in ways:
            if variables == answer[1]:
                paths.append(path)
                break
        else:
            ways.append(([path], answer[1]))
    tries = []
    for number, (_, variables) in enumerate(ways):
        for index, endpoint in enumerate(endpoints):
            tries.append((number, index, endpoint, variables))
    results = _try_all([(row[2], row[3]) for row in tries], seconds)
    rows = []
    for (number, index, _, _), result in zip(tries, results):
        rows.append([number, index, result])
    return {
        "endpoints": [endpoint[0] for endpoint in endpoints],
        "ways": [_shown(paths, variables) for paths, variables in ways],
        "unasked": unasked,
        "tries": rows,
    }


def _shown(paths, variables):
    """Return the proxies of a launch path without passwords."""
    row = {
        "paths": paths,
        "no_proxy": setting(variables, "no_proxy"),
    }
    for scheme in ("http", "https"):
        name = scheme + "_proxy"
        proxy = setting(variables, name) or setting(variables, "all_proxy")
        row[scheme] = shown(proxy) if proxy else ""
    return row


# ---------------------------------------------------------------- side by side


def _try_all(tries, seconds):
    """Return the result of each (endpoint, variables), tried in children side by side."""
    _import_once([endpoint[1] for endpoint, _ in tries])
    jobs = [_job(endpoint, variables) for endpoint, variables in tries]
    results = []
    for result, step in run_all(jobs, seconds):
        results.append(result or _unfinished(step, seconds))
    return results


def _job(endpoint, variables):
    return lambda begin: attempt(endpoint, variables, begin)


def _import_once(schemes):
    """Import what the children need, so that not each of them does."""
    import socket  # noqa: F401

    if "https" in schemes:
        try:
            import ssl  # noqa: F401
        except ImportError:  # each try says so
            pass


def _unfinished(step, seconds):
    """Return the result of a try that did not come to its end in time."""
    if not step:
        return ["no", "timed_out", "this node was too busy to try it within %g s" % seconds]
    return ["failed", step, "no answer within %g s" % seconds, ""]


# ---------------------------------------------------------------- one try


def attempt(endpoint, variables, begin):
    """Try one endpoint and return its result; `begin(step)` is called before each step."""
    _, scheme, host, port, path = endpoint
    proxy = proxy_for(variables, scheme, host, port)
    try:
        status = _ask(scheme, host, port, path, proxy, variables, begin)
    except Failed as failed:
        return ["failed", failed.step, failed.seen[:LONGEST], shown(proxy) if proxy else ""]
    except NoAnswer as no:
        return ["no", no.reason, no.why[:LONGEST]]
    except Exception as error:  # noqa: BLE001 - it becomes the reason of this try alone
        return ["no", "garbled", ("%s: %s" % (type(error).__name__, error))[:LONGEST]]
    return ["ok", status, shown(proxy) if proxy else ""]


def _ask(scheme, host, port, path, proxy, variables, begin):
    """Return the HTTP status of an endpoint, None for one of TCP alone. Raises Failed."""
    if not proxy:
        user, place = "", (host, port)
    else:
        parts = split(proxy)
        if parts is None:
            raise Failed("proxy", "the variable of the proxy holds no URL")
        if parts[0] != "http":
            raise NoAnswer("not_applicable", "a proxy of the kind %s is not tried" % parts[0])
        user, place = parts[1], parts[2:]
    connection = _connected(place[0], place[1], begin)
    try:
        if scheme == "tcp":
            return None
        name = "[%s]" % host if ":" in host else host
        if scheme == "http":
            headers = _authorization(user)
            begin("status")
            return _get(connection, "http", name, port, path, headers, bool(proxy))
        if proxy:
            begin("proxy")
            _tunnel(connection, "%s:%d" % (name, port), _authorization(user))
        begin("TLS")
        secured = _secured(connection, host, variables)
    finally:
        connection.close()  # a socket within TLS is another one by now
    try:
        begin("status")
        return _get(secured, "https", name, port, path, "", False)
    finally:
        secured.close()


def _get(connection, scheme, name, port, path, headers, whole):
    """Return the HTTP status of a URL; a proxy is asked for the `whole` of it.

    By GET and not HEAD, which some servers refuse; the body is not read.
    """
    place = name if port == PORTS[scheme] else "%s:%d" % (name, port)
    target = path or "/"
    if whole:
        target = "http://%s%s" % (place, target)
    request = "GET %s HTTP/1.1\r\nHost: %s\r\n%s" % (target, place, headers)
    request += "User-Agent: clusterprep\r\nConnection: close\r\n\r\n"
    return _status(connection, request, "status")[0]


def _connected(host, port, begin):
    """Return a connection to the first address of a name that takes one."""
    import socket

    begin("name")
    try:
        infos = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Failed("name", "%s: %s" % (host, getattr(error, "strerror", None) or error))
    begin("TCP")
    reasons = []
    for family, kind, protocol, _, address in infos[:MOST_ADDRESSES]:
        connection = socket.socket(family, kind, protocol)
        connection.settimeout(TCP_SECONDS)
        try:
            connection.connect(address)
        except socket.timeout:
            reasons.append("%s port %d: no answer within %g s" % (address[0], port, TCP_SECONDS))
            connection.close()
        except OSError as error:
            reasons.append("%s port %d: %s" % (address[0], port, error.strerror or error))
            connection.close()
        else:
            connection.settimeout(ANSWER_SECONDS)
            return connection
    raise Failed("TCP", "; ".join(sorted(reasons)))


def _authorization(user):
    """Return the header for a proxy that wants a user and a password."""
    if not user:
        return ""
    from urllib.parse import unquote

    word = binascii.b2a_base64(unquote(user).encode("utf-8"), newline=False)
    return "Proxy-Authorization: Basic %s\r\n" % word.decode("ascii")


def _tunnel(connection, place, headers):
    """Ask a proxy for the way to HOST:PORT."""
    request = "CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (place, place, headers)
    status, line = _status(connection, request, "proxy")
    if not 200 <= status < 300:
        raise Failed("proxy", line)


def _status(connection, request, step):
    """Send a request; return the status of the answer, and its status line."""
    end = b"\r\n\r\n" if step == "proxy" else b"\n"  # TLS begins behind a proxy's whole answer
    data = b""
    try:
        connection.sendall(request.encode("ascii"))
        while end not in data and len(data) < 4 * MOST_LINE:
            piece = connection.recv(MOST_LINE if step == "status" else 1)
            if not piece:
                break
            data += piece
    except OSError as error:  # ssl.SSLError and socket.timeout are of that kind
        raise Failed(step, "%s" % (getattr(error, "strerror", None) or error))
    line = data.split(b"\n")[0].decode("utf-8", "replace").strip()
    words = line.split(" ", 2)
    if not line.startswith("HTTP/") or len(words) < 2 or not words[1].isdigit():
        raise Failed(step, "no HTTP answer: %r" % line[:80] if line else "closed without an answer")
    return int(words[1]), "HTTP " + " ".join(words[1:])


def _secured(connection, host, variables):
    """Return the connection within TLS, its certificate verified."""
    try:
        import ssl
    except ImportError:
        raise NoAnswer("missing_tool", "this node's Python has no ssl module")
    context = _context(ssl, variables)
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except ssl.CertificateError as error:  # before Python 3.7 another host name alone
        code = getattr(error, "verify_code", NAME_CODES[0])
        step = "TLS chain"
        if code in TIME_CODES:
            step = "TLS time"
        elif code in NAME_CODES:
            step = "TLS name"
        raise Failed(step, getattr(error, "verify_message", None) or str(error))
    except OSError as error:
        seen = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        is_chain = "CERTIFICATE_VERIFY_FAILED" in seen
        raise Failed("TLS chain" if is_chain else "TLS", seen)


def _context(ssl, variables):
    """Return a context that trusts what the launch path's variables say, or else what OpenSSL does.

    OpenSSL takes its own two variables from the environment of the process.
    """
    for name in OPENSSL:
        os.environ.pop(name, None)
        if variables.get(name):
            os.environ[name] = variables[name]
    for name in BUNDLES:
        path = variables.get(name)
        if not path:
            continue
        try:
            if os.path.isdir(path):
                return ssl.create_default_context(capath=path)
            return ssl.create_default_context(cafile=path)
        except OSError as error:
            raise Failed("TLS chain", "%s=%s: %s" % (name, path, error.strerror or error))
    return ssl.create_default_context()


def install(agent):
    """Register the kind of read of this part, in a child of its own."""
    offer({"endpoints": read_endpoints})
