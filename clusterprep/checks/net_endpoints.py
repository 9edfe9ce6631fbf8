"""What the job needs from elsewhere is reached from every node, and nodes not through a proxy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    passed,
    skipped,
    unknown,
)
from clusterprep.facts.endpoints import Attempt, Reached, Way, split_endpoint
from clusterprep.model import Node
from clusterprep.model.nodeset import fold
from clusterprep.model.units import pluralize
from clusterprep.remedies import Remedy, sentence, shell_line
from clusterprep.remote.agent import proxies

SERVER_ERROR = 500  # RFC 9110: from here on the server, or a proxy before it, cannot serve
REFUSAL = 400  # 401 of a registry without a login is health, and so it is compared with others
PROXY_LOGIN = 407  # RFC 9110: the proxy wants a password
TOO_MANY = 429  # RFC 6585: all nodes asked at once
SHOWN = 8  # addresses in a remedy

Group = tuple[str, tuple[str, ...], str, str]  # endpoint, launch paths, step, what was seen


def endpoints(context: CheckContext) -> Iterable[Outcome]:
    """Judge every endpoint from every node, and no_proxy of every launch path."""
    reached: dict[str, Reached] = {}
    for node in context.nodes:
        value = context.value(node, "net.reached")
        if value is None:
            yield skipped(node, "no endpoints are declared")
        else:
            reached[node.name] = value
    nodes = {node.name: node for node in context.nodes if node.name in reached}
    refusing = _refused_here(reached)
    failures = list(_failures(reached, refusing))
    failures.extend(_through_proxies(context, nodes, reached))
    yield from failures
    failed_nodes = {name for outcome in failures for name in outcome.nodes}
    judged: list[Outcome] = []
    for members in context.alike("net.reached"):
        first = members[0]
        if first.name not in reached:
            continue
        unclear = list(_unclear(first, reached[first.name]))
        judged.extend(about_all(members, unclear))
        good = [node for node in members if node.name not in failed_nodes]
        if good and not unclear:
            seen = pluralize(len(first.endpoints), "endpoint")
            wanted = ", ".join(first.endpoints)
            well = passed(good[0], "every endpoint is reached", seen, wanted)
            judged.extend(about_all(good, [well]))
    yield from sorted(judged, key=lambda outcome: nodes[outcome.nodes[0]].index)


# ---------------------------------------------------------------- endpoints


def _failures(reached: Mapping[str, Reached], refusing: Mapping[str, int]) -> Iterable[Outcome]:
    """Yield one failure for all nodes on which an endpoint fails in the same way."""
    groups: dict[Group, list[str]] = {}
    well: dict[str, dict[str, None]] = {}  # endpoint -> names of nodes
    ill: dict[str, dict[str, None]] = {}
    for name, value in reached.items():
        for attempt in value.attempts:
            if attempt.untried is not None:
                continue
            step, seen = _failure(attempt, refusing)
            if not step:
                well.setdefault(attempt.endpoint, {})[name] = None
                continue
            ill.setdefault(attempt.endpoint, {})[name] = None
            through = f" through {attempt.proxy}" if attempt.proxy else ""
            of_all = len(value.ways) == 1 and not value.unasked
            paths = () if of_all else attempt.paths
            key = (attempt.endpoint, paths, step, f"{step}: {seen}{through}")
            groups.setdefault(key, []).append(name)
    for (endpoint, paths, step, seen), names in groups.items():
        others = [name for name in well.get(endpoint, {}) if name not in ill[endpoint]]
        where = f" in the environment of {' and '.join(paths)}" if paths else ""
        message = f"{endpoint} is not reached{where}: it fails at {_said(step)}"
        wanted = "reached"
        if others:
            wanted = f"reached, as from {fold(others)}"
        elif len(ill[endpoint]) > 1 and endpoint not in well:
            message += ", and no node that tried reaches it"
        yield Outcome("fail", tuple(names), message, seen, wanted, _cure(endpoint, step))


def _failure(attempt: Attempt, refusing: Mapping[str, int]) -> tuple[str, str]:
    """Return the step that failed and what was seen, or two empty texts."""
    if attempt.step:
        return attempt.step, attempt.seen
    status = attempt.status
    if status is None:
        return "", ""
    if status == PROXY_LOGIN:
        return "proxy", f"HTTP {status}"
    usual = refusing.get(attempt.endpoint)
    if status >= SERVER_ERROR:
        return "status", f"HTTP {status}"
    if usual is not None and _refuses(status):
        return "status", f"HTTP {status}, most nodes get {usual}"
    return "", ""


def _refuses(status: int) -> bool:
    return REFUSAL <= status < SERVER_ERROR and status not in (PROXY_LOGIN, TOO_MANY)


def _refused_here(reached: Mapping[str, Reached]) -> dict[str, int]:
    """Return the usual status of endpoints that serve most nodes: one that is refused is odd.

    By endpoint; those are left out that refuse all nodes or half of them, as one without a login
    does.
    """
    counts: dict[str, dict[int, int]] = {}
    for value in reached.values():
        for attempt in value.attempts:
            if attempt.status is not None:
                of_endpoint = counts.setdefault(attempt.endpoint, {})
                of_endpoint[attempt.status] = of_endpoint.get(attempt.status, 0) + 1
    usual = {}
    for endpoint, by_status in counts.items():
        served = {status: count for status, count in by_status.items() if status < REFUSAL}
        if 2 * sum(served.values()) > sum(by_status.values()):
            usual[endpoint] = max(served, key=lambda status: served[status])
    return usual


def _said(step: str) -> str:
    """Return a step as a sentence has it."""
    words = {
        "name": "the name",
        "proxy": "the proxy",
        "TLS chain": "the certificate's chain",
        "TLS time": "the certificate's time",
        "TLS name": "the certificate's name",
        "status": "the HTTP status",
    }
    return words.get(step, step)


def _cure(endpoint: str, step: str) -> Remedy:
    """Return what to do about an endpoint that fails at this step."""
    _, host, port, _ = split_endpoint(endpoint)
    if step == "name":
        return shell_line(
            "getent hosts {host}; cat /etc/resolv.conf"
            "   # compare with a node that reaches it; behind a proxy this is the proxy's name",
            host=host,
        )
    if step == "TLS chain":
        return sentence(
            "install the authority that signs for {host} on the node, update-ca-certificates or "
            "update-ca-trust, or correct SSL_CERT_FILE and REQUESTS_CA_BUNDLE of the job",
            host=host,
        )
    if step == "TLS time":
        return shell_line(
            "date -u; timedatectl   # if the clock is right, the certificate of {host} needs to be "
            "renewed",
            host=host,
        )
    if step == "TLS name":
        return sentence(
            "see who answers for {host} port {port}: /etc/hosts, the name servers, a portal",
            host=host,
            port=port,
        )
    if step == "proxy":
        return sentence(
            "correct http_proxy and https_proxy of the job's environment: the proxy refuses the "
            "way to {host} port {port}",
            host=host,
            port=port,
        )
    if step == "status":
        return sentence("ask who serves {host}: it answers, and not as it should", host=host)
    return sentence(
        "open the way to {host} port {port}, or give the job's environment the proxy that leads "
        "there",
        host=host,
        port=port,
    )


def _unclear(node: Node, reached: Reached) -> Iterable[Outcome]:
    """Yield what could not be tried on a node."""
    for path, absent in reached.unasked.items():
        message = f"the proxies of {path} are not known: {absent.detail}"
        yield unknown(node, message, absent.reason)
    tried = {attempt.endpoint for attempt in reached.attempts}
    for endpoint in node.endpoints:
        if endpoint not in tried and reached.ways:
            yield unknown(node, f"{endpoint} was not tried", "garbled")
    for attempt in reached.attempts:
        if attempt.untried is not None:
            message = f"{attempt.endpoint} could not be tried: {attempt.untried.detail}"
            yield unknown(node, message, attempt.untried.reason)


# ---------------------------------------------------------------- no_proxy


def _through_proxies(
    context: CheckContext, nodes: Mapping[str, Node], reached: Mapping[str, Reached]
) -> Iterable[Outcome]:
    """Yield one failure for all nodes whose no_proxy lacks the same addresses of the inventory."""
    lacking: dict[frozenset[str], tuple[str, ...]] = {}  # by entries of no_proxy
    groups: dict[tuple[str, str], tuple[list[str], dict[str, None]]] = {}
    addresses = tuple(dict.fromkeys(node.address for node in context.inventory.nodes))
    for name, value in reached.items():
        node = nodes[name]
        for way in value.ways:
            proxy = way.https or way.http
            if not proxy:
                continue
            # Many a no_proxy holds the node's own name: without it those of all nodes are equal.
            entries = proxies.entries(way.no_proxy) - {node.name.lower(), node.address.lower()}
            if entries not in lacking:
                lacking[entries] = _lacking(entries, addresses)
            missing = lacking[entries]
            if not missing or missing == (node.address,):
                continue
            names, gone = groups.setdefault((proxy, " and ".join(way.paths)), ([], {}))
            names.append(name)
            if len(gone) < len(addresses):
                gone.update(dict.fromkeys(missing))
    for (proxy, paths), (names, gone) in groups.items():
        missing = tuple(address for address in addresses if address in gone)
        yield _proxied(proxy, paths, names, missing, len(addresses))


def _lacking(entries: frozenset[str], addresses: Sequence[str]) -> tuple[str, ...]:
    exceptions = proxies.Exceptions(entries)
    return tuple(address for address in addresses if not exceptions.hold(address))


def _proxied(
    proxy: str, paths: str, names: Sequence[str], missing: Sequence[str], count: int
) -> Outcome:
    """Return the failure of nodes that would ask other nodes through a proxy."""
    message = f"no_proxy of {paths} lacks nodes of this inventory, which are asked through {proxy}"
    seen = f"{len(missing)} of {count} addresses missing: {fold(missing)}"
    more = "" if len(missing) <= SHOWN else " and the others"
    cure = sentence(
        "add to no_proxy and NO_PROXY of the job's environment: {missing}{more}",
        missing=",".join(missing[:SHOWN]),
        more=more,
    )
    return Outcome("fail", tuple(names), message, seen, "every node's address in no_proxy", cure)


def _bad(value: Reached | None) -> Reached:
    """Return what a node says whose no_proxy is empty."""
    paths = ("login shell", "ssh command")
    way = Way(paths, "http://proxy:3128", "http://proxy:3128")
    return Reached((), (way,), {})


CHECK = Check(
    "net.endpoints",
    facts=("net.reached",),
    judge=endpoints,
    severity="warning",
    title="What the job needs from elsewhere",
    why="A model hub, registry, object store or licence server that one node does not reach ends "
    "the job there, or leaves its rank waiting in a download while the others wait for it. A proxy "
    "that is used between nodes makes rendezvous and metrics fail.",
    how="Every URL of `endpoints:` is tried from each node as job_user, in the environments of the "
    "login shell and the ssh command: name, TCP, proxy, the certificate's chain, name and time by "
    "the node's own OpenSSL, HTTP status. A status from 500 fails; one from 400 fails where most "
    "nodes are served. Redirects are not followed. tcp:// takes no proxy. Where a proxy is set, "
    "no_proxy must hold the addresses of all nodes. All tries together take 10 s at most.",
    remedy=sentence("compare proxies, name servers and firewalls with a node that reaches it"),
    proof=Proof("net.reached", _bad),
)
