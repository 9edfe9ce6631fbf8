"""JSON, signals and sockets without the standard library's Python layers; names of files as text.

`json`, `signal` and `socket` import `re` and `enum`, which takes a node longer than starting
Python does. Their C cores are there in every CPython from 3.6; where one is missing or differs,
the ordinary module serves.
"""

import sys

try:
    import _json

    class _Syntax(object):
        strict = False
        object_hook = object_pairs_hook = None
        parse_float, parse_int, parse_constant = float, int, float

    def _refuse(value):
        raise TypeError("%s is not JSON" % type(value).__name__)

    _scan = _json.make_scanner(_Syntax)  # type: ignore[arg-type]
    _chunks = _json.make_encoder(
        None, _refuse, _json.encode_basestring_ascii, None, ":", ",", False, False, True
    )

    def loads(text):
        """Return the value of one JSON text."""
        try:
            value, _ = _scan(text.strip(), 0)
        except StopIteration:
            raise ValueError("no JSON")
        except SystemError:
            # Python 3.10 and 3.11 cannot raise what says where the text is wrong before `json` is
            # there.
            import json

            return json.loads(text, strict=False)
        return value

    def dumps(value):
        """Return one line of ASCII JSON."""
        return "".join(_chunks(value, 0))

    _sample = {"a": [1, None, True, "\u00e9\n", 0.5]}
    if loads(dumps(_sample)) != _sample:
        raise ImportError("this interpreter's _json works in another way")
except (ImportError, AttributeError, TypeError, ValueError):
    import json

    loads = json.loads  # type: ignore[assignment]

    def dumps(value):
        """Return one line of ASCII JSON."""
        return json.dumps(value, separators=(",", ":"))


try:
    import _signal as signal  # type: ignore[import-not-found]
except ImportError:
    import signal

try:
    import _socket as socket
except ImportError:
    import socket  # type: ignore[no-redef]

# Names on disk are UTF-8. In the C locale Python 3.6 takes them for ASCII, and each other byte is a
# lone surrogate; later releases use UTF-8 there.
_NAMES_ARE_ASCII = sys.getfilesystemencoding() in ("ascii", "us-ascii")


def native(value):
    """Return a JSON value with its texts as this interpreter's functions for files take them."""
    return _recoded(value, "ascii") if _NAMES_ARE_ASCII else value


def readable(value):
    """Return a JSON value with its texts as others read them: the reverse of `native`."""
    return _recoded(value, "utf-8") if _NAMES_ARE_ASCII else value


def _recoded(value, encoding):
    """Return a JSON value whose texts have the same bytes, by the rules of this encoding."""
    if isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape").decode(encoding, "surrogateescape")
        except UnicodeEncodeError:  # a surrogate that stands for no byte
            return value
    if isinstance(value, (list, tuple)):
        return [_recoded(item, encoding) for item in value]
    if isinstance(value, dict):
        pairs = {}
        for key, item in value.items():
            pairs[_recoded(key, encoding)] = _recoded(item, encoding)
        return pairs
    return value


__all__ = ["dumps", "loads", "native", "readable", "signal", "socket"]
