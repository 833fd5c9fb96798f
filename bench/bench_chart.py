"""Pictures of results as SVG, written as text: bars in panels, and a table of shares.

No drawing package: a picture is rectangles and labels. Colours keep their contrast on white, and
every bar carries its number, so that nothing is read off an axis.
"""
import html

FONT = "font-family='DejaVu Sans, Verdana, Arial, sans-serif'"
INK, FAINT = "#1b1f24", "#57606a"
COLOURS = {"ours": "#0b6bcb", "ours-2": "#6cb1f2", "peer": "#8c959f", "peer-default": "#ced4da",
           "floor": "#f2c078"}
ROW, GAP, TITLE = 19, 26, 40


def text(x, y, value, size=11, anchor="start", colour=INK, weight="normal"):
    return (f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' text-anchor='{anchor}' "
            f"fill='{colour}' font-weight='{weight}'>{html.escape(str(value))}</text>")


def box(x, y, width, height, colour):
    return f"<rect x='{x:.1f}' y='{y:.1f}' width='{max(width, 0):.1f}' height='{height:.1f}' " \
           f"rx='2' fill='{colour}'/>"


def page(width, height, title, lines, parts, legend):
    """Title, lines of small print and the legend above; parts start at y = head_height(lines)."""
    head = [text(16, 28, title, 17, weight="bold")]
    head += [text(16, 48 + 16 * i, line, 11, colour=FAINT) for i, line in enumerate(lines)]
    x, y = 16, 48 + 16 * len(lines) + 4
    for name, colour in legend:
        head += [box(x, y - 10, 12, 12, colour), text(x + 18, y, name)]
        x += 34 + 7 * len(name)
    return "\n".join([
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
        f"viewBox='0 0 {width} {height}' {FONT}>",
        f"<rect width='{width}' height='{height}' fill='white'/>", *head, *parts, "</svg>", ""])


def head_height(lines):
    return 48 + 16 * len(lines) + 22


def panel_height(panel):
    return TITLE + ROW * len(panel["bars"]) + GAP


def draw_panel(panel, x, y, width, label_width):
    """panel: title, bars of (label, value, number as text, kind)."""
    parts = [text(x, y + 18, panel["title"], 13, weight="bold")]
    if panel.get("note"):
        parts.append(text(x, y + 33, panel["note"], 10, colour=FAINT))
    number_width = 8 + 6.4 * max((len(bar[2]) for bar in panel["bars"]), default=0)
    most = max([panel.get("most", 0), *(bar[1] for bar in panel["bars"])]) or 1
    scale = (width - label_width - number_width) / most
    for i, (label, value, number, kind) in enumerate(panel["bars"]):
        top = y + TITLE + ROW * i
        ours = kind.startswith("ours")
        parts += [text(x + label_width - 6, top + 12, label, 11, "end",
                       weight="bold" if ours else "normal"),
                  box(x + label_width, top, value * scale, ROW - 5, COLOURS[kind]),
                  text(x + label_width + value * scale + 5, top + 12, number, 11,
                       weight="bold" if ours else "normal")]
    return parts


def bars(title, lines, panels, legend, columns=2, panel_width=620, label_width=265):
    """Panels side by side, each row of them as high as its highest."""
    y, parts = head_height(lines), []
    for start in range(0, len(panels), columns):
        line = panels[start:start + columns]
        for column, panel in enumerate(line):
            parts += draw_panel(panel, 16 + column * (panel_width + 24), y, panel_width,
                                label_width)
        y += max(map(panel_height, line))
    columns = min(columns, len(panels))
    return page(16 + columns * (panel_width + 24), y + 8, title, lines, parts,
                [(name, COLOURS[kind]) for name, kind in legend])


def shade(share):
    """White at 0 to blue at 1, through a scale that keeps neighbours apart."""
    share = min(max(share, 0.0), 1.0)
    low, high = (247, 251, 255), (8, 81, 156)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(low, high))


def draw_table(table, x, y, cell_width=44, label_width=110):
    """table: title, columns, rows of (label, shares)."""
    parts = [text(x, y + 18, table["title"], 13, weight="bold")]
    if table.get("note"):
        parts.append(text(x, y + 33, table["note"], 10, colour=FAINT))
    y += TITLE
    for i, name in enumerate(table["columns"]):
        middle = x + label_width + cell_width * (i + 0.5)
        parts.append(text(middle, y + 12, name, 10, "middle", FAINT))
    for line, (label, shares) in enumerate(table["rows"]):
        top = y + ROW * (line + 1)
        parts.append(text(x + label_width - 8, top + 13, label, 11, "end"))
        for i, share in enumerate(shares):
            if share is None:
                continue
            left = x + label_width + cell_width * i
            parts += [box(left + 1, top + 1, cell_width - 2, ROW - 2, shade(share)),
                      text(left + cell_width / 2, top + 13, f"{100 * share:.0f}", 10, "middle",
                           "white" if share > 0.55 else INK)]
    return parts, TITLE + ROW * (len(table["rows"]) + 1) + GAP


def bars_and_tables(title, lines, panels, tables, legend):
    """Panels of bars, then tables below one another."""
    panel_width, label_width = 480, 130
    y, parts, widest = head_height(lines), [], 0
    for start in range(0, len(panels), 2):
        line = panels[start:start + 2]
        for column, panel in enumerate(line):
            parts += draw_panel(panel, 16 + column * (panel_width + 24), y, panel_width,
                                label_width)
        widest = max(widest, 16 + len(line) * (panel_width + 24))
        y += max(map(panel_height, line))
    for table in tables:
        drawn, height = draw_table(table, 16, y)
        parts += drawn
        y += height
        widest = max(widest, 16 + 110 + 44 * len(table["columns"]) + 24)
    return page(widest, y + 8, title, lines, parts,
                [(name, COLOURS[kind]) for name, kind in legend])
