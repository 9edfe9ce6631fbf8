"""Draws what a terminal showed as a picture that moves: SVG with one style and no script.

All lines stand in one column, and a style sheet moves that column behind a window of 80 by 32. A
reader who asked for no motion sees the first window.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from rich.console import Console
from rich.segment import Segment
from rich.terminal_theme import TerminalTheme
from rich.text import Text

COLUMNS, ROWS = 80, 32
CELL, LINE, SIZE, MARGIN = 8.4, 18, 14, 14  # pixels
FIRST, BETWEEN, LAST, MOVE = 7.0, 2.5, 4.5, 0.7  # seconds
STEP = ROWS - 6  # lines from one window to the next, so that a reader finds the place again
PROMPT = "$ "


class Stop(NamedTuple):
    """The line at the top of the window, and how long the window stays there."""

    line: int
    seconds: float


def draw(screen: str, theme: TerminalTheme, title: str) -> str:
    """Return the picture of a terminal's text, in which ANSI escapes say the colours."""
    lines = screen.rstrip("\n").split("\n")
    stops = _stops(lines)
    width = COLUMNS * CELL + 2 * MARGIN
    height = ROWS * LINE + 2 * MARGIN
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_style(stops, theme)}</style>",
        f'<rect width="100%" height="100%" rx="8" fill="{_hex(theme.background_color)}"/>',
        f'<svg x="{MARGIN}" y="{MARGIN}" width="{COLUMNS * CELL:g}" height="{ROWS * LINE}">',
        '<g class="lines">',
        *_rows(lines, theme),
        "</g>",
        "</svg>",
        "</svg>",
    ]
    return "\n".join(rows) + "\n"


def _stops(lines: Sequence[str]) -> list[Stop]:
    """Return where the window rests: at each command, on its way to the end, and at the end."""
    starts = [i for i, line in enumerate(lines) if Text.from_ansi(line).plain.startswith(PROMPT)]
    stops = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        last = max(start, end - ROWS)
        stops.append(Stop(start, FIRST))
        stops += [Stop(line, BETWEEN) for line in range(start + STEP, last, STEP)]
        if last > start:
            stops.append(Stop(last, LAST))
    return stops


def _style(stops: Sequence[Stop], theme: TerminalTheme) -> str:
    total = sum(stop.seconds + MOVE for stop in stops)
    frames = []
    now = 0.0
    for stop in stops:
        place = f"transform:translateY({-stop.line * LINE}px)"
        until = now + stop.seconds
        frames.append(f"{100 * now / total:.2f}%,{100 * until / total:.2f}%{{{place}}}")
        now = until + MOVE
    frames.append(f"100%{{transform:translateY({-stops[0].line * LINE}px)}}")
    font = f"font:{SIZE}px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace"
    return (
        f"text{{{font};white-space:pre;fill:{_hex(theme.foreground_color)}}}"
        ".b{font-weight:bold}.d{opacity:.65}"
        f"@keyframes scroll{{{''.join(frames)}}}"
        f".lines{{animation:scroll {total:.1f}s ease-in-out infinite}}"
        "@media(prefers-reduced-motion:reduce){.lines{animation:none}}"
    )


def _rows(lines: Sequence[str], theme: TerminalTheme) -> Iterator[str]:
    """Yield each line that is not empty as an element of text."""
    console = Console(file=io.StringIO(), force_terminal=True, width=10 * COLUMNS)
    for number, line in enumerate(lines):
        parts = []
        column = 0
        for segment in console.render(Text.from_ansi(line)):
            text = segment.text.rstrip("\n")
            if text.strip():
                parts.append(_part(segment, text, column, theme))
            column += segment.cell_length
        if parts:
            yield f'<text y="{number * LINE + SIZE}">{"".join(parts)}</text>'


def _part(segment: Segment, text: str, column: int, theme: TerminalTheme) -> str:
    """Return a piece of a line, at its column whatever the width of the reader's letters is."""
    style = segment.style
    classes = ""
    colour = ""
    if style is not None:
        classes = "b" * bool(style.bold) + " d" * bool(style.dim)
        if style.color is not None and not style.color.is_default:
            colour = f' fill="{_hex(style.color.get_truecolor(theme))}"'
    named = f' class="{classes.strip()}"' if classes else ""
    long = f' textLength="{len(text) * CELL:g}"'
    return f'<tspan x="{column * CELL:g}"{named}{colour}{long}>{escape(text)}</tspan>'


def _hex(colour: Sequence[int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
