"""Self-contained HTML pages: tables and plots of audits and reports, with nothing from elsewhere.

Plots are inline SVG, colours follow `prefers-color-scheme`; no script, font or picture is loaded.
"""

import dataclasses
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

WIDTH, HEIGHT = 360.0, 250.0  # of a plot, in its own units; text is legible at 340 pixels
LEFT, RIGHT, TOP, BOTTOM = 46.0, 12.0, 26.0, 42.0
LONG: Final = 40  # characters of a word that may be broken
STYLE: Final = """\
:root{--text:#1c2024;--soft:#5a6270;--line:#d5d9df;--back:#fff;--card:#f5f6f8;--one:#0060a8;
--two:#b34700;--good:#0a6b3d;--bad:#b00020;--note:#7a5b00}
@media (prefers-color-scheme:dark){:root{--text:#e8eaed;--soft:#a7afba;--line:#3a414b;
--back:#15181c;--card:#1e2329;--one:#6cb6ff;--two:#ffb072;--good:#5fd39a;--bad:#ff8a95;
--note:#f0c75e}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:60rem;background:var(--back);color:var(--text);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.6rem;line-height:1.2;margin:.3rem 0 .6rem}
h2{font-size:1.15rem;margin:1.4rem 0 .5rem;border-bottom:1px solid var(--line)}
p{margin:.4rem 0}.soft{color:var(--soft)}.small{font-size:.85rem}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;vertical-align:top;padding:.3rem .5rem .3rem 0;
border-bottom:1px solid var(--line);overflow-wrap:break-word}
th{color:var(--soft);font-weight:600}.digest{overflow-wrap:anywhere}
@media screen and (max-width:40rem){table.wide tr:first-child{display:none}
table.wide td{display:block;border:0;padding:.05rem 0}
table.wide td::before{content:attr(data-label);color:var(--soft);font-size:.85rem;
display:inline-block;min-width:7rem;padding-right:.5rem}
table.wide td[data-label=""]::before{display:none}
table.wide tr{display:block;border-bottom:1px solid var(--line);padding:.4rem 0}}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.6rem}
.fact{background:var(--card);border:1px solid var(--line);border-radius:.4rem;padding:.5rem .7rem}
.fact b{display:block;font-size:1.25rem;overflow-wrap:anywhere}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(20rem,100%),1fr));gap:1rem}
figure{margin:0}figcaption{font-size:.85rem;color:var(--soft)}
svg{width:100%;height:auto;max-width:34rem;display:block}
svg text{fill:var(--soft);font-size:11px;font-family:inherit}
.grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}
.one{stroke:var(--one);fill:none;stroke-width:2}
.two{stroke:var(--two);fill:none;stroke-width:2;stroke-dasharray:6 3}
.dot{fill:var(--two);stroke:var(--back);stroke-width:1.5}
svg text.l1{fill:var(--one)}svg text.l2{fill:var(--two)}
.passed{color:var(--good);font-weight:600}.violation{color:var(--bad);font-weight:600}
.warning,.no-power{color:var(--note);font-weight:600}.not-checked{color:var(--soft)}
.sensitive{border:2px solid var(--bad);color:var(--bad);padding:.4rem .7rem;font-weight:600}
ul{padding-left:1.2rem;margin:.3rem 0}
@page{size:A4;margin:12mm}
@media print{:root{--text:#000;--soft:#444;--line:#bbb;--back:#fff;--card:#fff;--one:#004a80;
--two:#8a3600;--good:#064;--bad:#900;--note:#640}
body{font-size:9pt;line-height:1.3;padding:0;max-width:none}h1{font-size:14pt}
h2{font-size:10.5pt;margin:.6rem 0 .2rem}table{font-size:8pt}th,td{padding:.1rem .3rem .1rem 0}
svg{max-width:8cm}.plots{grid-template-columns:1fr 1fr}.facts{grid-template-columns:repeat(4,1fr)}
.fact b{font-size:10.5pt}.fact{padding:.15rem .4rem}tr,figure,.fact{break-inside:avoid}}
"""


def escaped(text: object) -> str:
    """Returns text for HTML; marks of Markdown are left out."""
    return html.escape(str(text).replace("*", "").replace("`", ""))


def document(title: str, body: Iterable[str]) -> str:
    """Returns a whole page.

    Args:
        title: as text.
        body: pieces of HTML.
    """
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n'
        f"<title>{escaped(title)}</title>\n<style>\n{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table; cells are HTML. With a head its cells stand below each other on a phone."""
    top = "".join(f"<th>{one}</th>" for one in head)
    labels = [f' data-label="{escaped(one)}"' for one in head]
    lines = "\n".join(
        "<tr>"
        + "".join(
            f'<td class="digest"{labels[place] if head else ""}>{cell}</td>'
            if max(map(len, cell.split()), default=0) > LONG
            else f"<td{labels[place] if head else ''}>{cell}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    opening = f"<table class=wide><tr>{top}</tr>" if head else "<table>"
    return f"{opening}\n{lines}</table>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Returns names and values, as text, in boxes."""
    boxes = "".join(
        f'<div class="fact"><span class="small soft">{escaped(name)}</span>'
        f"<b>{escaped(value)}</b></div>"
        for name, value in pairs
    )
    return f'<div class="facts">{boxes}</div>'


def outcome(text: str) -> str:
    """Returns an outcome of a check, coloured."""
    return f'<span class="{text.replace(" ", "-")}">{escaped(text)}</span>'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a plot, or its points alone.

    Attributes:
        label: what it is.
        points: pairs of x and y; those that are not finite are left out.
        is_steps: whether y stays as it is until the next x.
        is_point: whether points are drawn without a line.
    """

    label: str
    points: Sequence[tuple[float, float]]
    is_steps: bool = False
    is_point: bool = False


def plot(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    x_names: Mapping[float, str] | None = None,
    top: float | None = None,
) -> str:
    """Returns a figure with up to two lines and points, as SVG in HTML.

    Args:
        lines: what is drawn.
        title: below the figure; as text, read aloud instead of it.
        x_label: of the horizontal axis.
        y_label: of the vertical one.
        log_x: whether x is logarithmic.
        x_names: texts instead of numbers at some x.
        top: the largest y that the axis shows; None for what is there.
    """
    scale = math.log10 if log_x else float
    known = [
        [(scale(x), y) for x, y in one.points if math.isfinite(x) and math.isfinite(y)]
        for one in lines
    ]
    every = [point for one in known for point in one] or [(0.0, 0.0)]
    x_low, x_high = min(x for x, _ in every), max(x for x, _ in every)
    x_high = x_high if x_high > x_low else x_low + 1.0
    y_high = top or _round_up(max(y for _, y in every))

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - y / y_high * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<figure><svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{escaped(title)}">'
    ]
    for step in range(5):
        y = y_high * step / 4.0
        _, height = place(x_low, y)
        parts.append(
            f'<line class="grid" x1="{LEFT:g}" y1="{height:.1f}" x2="{WIDTH - RIGHT:g}" '
            f'y2="{height:.1f}"/><text x="{LEFT - 5:g}" y="{height + 4:.1f}" '
            f'text-anchor="end">{y:.3g}</text>'
        )
    for x, name in _ticks(x_low, x_high, log_x, x_names):
        across, _ = place(x, 0.0)
        anchor = "start" if across < LEFT + 12 else "end" if across > WIDTH - 40 else "middle"
        parts.append(
            f'<text x="{across:.1f}" y="{HEIGHT - BOTTOM + 15:g}" text-anchor="{anchor}">'
            f"{escaped(name)}</text>"
        )
    parts.append(
        f'<line class="axis" x1="{LEFT:g}" y1="{HEIGHT - BOTTOM:g}" x2="{WIDTH - RIGHT:g}" '
        f'y2="{HEIGHT - BOTTOM:g}"/><text x="{(LEFT + WIDTH - RIGHT) / 2:g}" '
        f'y="{HEIGHT - 8:g}" text-anchor="middle">{escaped(x_label)}</text>'
        f'<text transform="translate(11 {(HEIGHT - BOTTOM) / 2:g}) rotate(-90)" '
        f'text-anchor="middle">{escaped(y_label)}</text>'
    )
    drawn = 0
    for one, points in zip(lines, known, strict=True):
        placed = [place(x, min(y, y_high)) for x, y in points]
        if one.is_point:
            parts.append(
                f'<circle class="dot" cx="{LEFT + 6:g}" cy="10" r="4"/><text x="{LEFT + 14:g}" '
                f'y="14">{escaped(one.label)}</text>'
            )
            for across, height in placed:
                parts.append(f'<circle class="dot" cx="{across:.1f}" cy="{height:.1f}" r="5"/>')
            continue
        if one.is_steps:
            placed = [
                pair
                for index, (across, height) in enumerate(placed)
                for pair in (
                    *([(across, placed[index - 1][1])] if index else []),
                    (across, height),
                )
            ]
        path = " ".join(f"{across:.1f},{height:.1f}" for across, height in placed)
        kind = ("one", "two")[drawn % 2]
        parts.append(f'<polyline class="{kind}" points="{path}"/>')
        parts.append(
            f'<text class="l{drawn % 2 + 1}" x="{WIDTH - RIGHT - 150 * drawn:g}" y="14" '
            f'text-anchor="end">{escaped(one.label)}</text>'
        )
        drawn += 1
    parts.append(f"</svg><figcaption>{escaped(title)}</figcaption></figure>")
    return "".join(parts)


def _round_up(value: float) -> float:
    """Returns the next of 1, 2, 4, 5, 8, 10 times a power of ten."""
    if not value > 0.0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return unit * next(one for one in (1, 2, 4, 5, 8, 10) if value <= one * unit * (1 + 1e-9))


def _ticks(
    low: float, high: float, log_x: bool, names: Mapping[float, str] | None
) -> list[tuple[float, str]]:
    if names is not None:
        return list(names.items())
    if log_x:
        first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
        step = max(1, (last - first) // 4)
        return [(float(one), f"1e{one}") for one in range(first, last + 1, step)]
    return [
        (low + (high - low) * one / 4.0, f"{low + (high - low) * one / 4.0:.3g}")
        for one in range(5)
    ]


# The page of an audit.


def checks_table(checks: Iterable[Mapping[str, Any]]) -> str:
    """Returns a table of checks."""
    return table(
        ("", "what was checked, and how", "found", "what it can't see"),
        (
            (
                outcome(one["outcome"]),
                f"<b>{escaped(one['name'])}</b><br>{escaped(one['how'])}",
                escaped(one["found"]),
                escaped(one["blind_spot"]),
            )
            for one in checks
        ),
    )


def audit_page(found: Mapping[str, Any]) -> str:
    """Returns the page of an audit.

    >>> import pate_tf
    >>> found = pate_tf.audit.audit_mechanism(
    ...     pate_tf.PermuteAndFlip(scale=1.0), delta=1e-5, num_draws=20_000
    ... )
    >>> pate_tf.audit.audit_page(found.to_dict()).startswith("<!DOCTYPE html>")
    True

    Args:
        found: `to_dict()` of what `audit_mechanism`, `audit_run` or `audit_canaries` returned.
    """
    kind = found["audit"]
    title = f"Audit of {found.get('summary') or found.get('folder')}"
    body = [f"<h1>{escaped(title)}</h1>"]
    if kind != "mechanism":
        body.append('<p class="sensitive">SENSITIVE: for the holder of the private data.</p>')
    body.append(
        f"<p>Outcome: {outcome(found['outcome'])}, after {found['seconds']:.0f} s of work.</p>"
    )
    shown = [
        (name, found[key] if isinstance(found[key], str) else f"{found[key]:,.4g}")
        for key, name in (
            ("claimed", "claimed epsilon"),
            ("lower_bound", "found, at least"),
            ("delta", "at delta"),
            ("group", "draws together"),
            ("num_draws", "draws for each data set"),
            ("num_canaries", "canaries"),
            ("true_positive_rate", "true positives at .1 % false ones"),
        )
        if found.get(key) is not None
    ]
    body.append(facts(shown))
    if found.get("neighbours"):
        body.append(f"<p>Neighbouring data: {escaped(found['neighbours'])}.</p>")
    if "control_caught" in found:
        caught = "was caught" if found["control_caught"] else "was NOT caught: no power"
        body.append(f"<p>Control: the same with half the noise {caught}.</p>")
    if curve := found.get("curve"):
        body.append(
            plot(
                [
                    Line(label=label, points=[(one["delta"], one[name]) for one in curve])
                    for label, name in (("claimed", "claimed"), ("found, at least", "lower_bound"))
                ],
                title="Epsilon as a function of delta: what is claimed, and what the draws "
                "exclude to lie below, each point with confidence 99.9 %",
                x_label="delta",
                y_label="epsilon",
                log_x=True,
            )
        )
    if roc := found.get("roc"):
        body.append(
            plot(
                [
                    Line(label="found", points=[(one, two) for one, two in roc]),
                    Line(label="by chance", points=[(one, one) for one, _ in roc]),
                ],
                title="Draws with the canary that are found, by how many without it are taken "
                "for one",
                x_label="false positive rate",
                y_label="true positive rate",
                log_x=True,
                top=1.0,
            )
        )
    if spent := found.get("spending"):
        body.append(spending_plot(spent))
    body += ["<h2>Checks</h2>", checks_table(found["checks"])]
    return document(title, body)


def spending_plot(spent: Sequence[Mapping[str, Any]]) -> str:
    """Returns the plot of what a ledger's rows have spent: `row`, `time`, `epsilon` of each."""
    points = [(0.0, 0.0), *((float(place), one["epsilon"]) for place, one in enumerate(spent, 1))]
    points.append((len(spent) + 0.5, points[-1][1]))
    return plot(
        [Line(label="epsilon spent", points=points, is_steps=True)],
        title="What the ledger has spent after each charge",
        x_label="charge",
        y_label="epsilon",
        x_names={0.0: "0", float(len(spent)): str(len(spent))},
    )
