"""Draws the schematic figures of the docs as SVG: `python docs/figures.py`. A test holds the files to this script.

A figure of an algorithm has three panels, read from left to right: squares are models, discs are clients (or, where a
disc is in a box, examples of one client), colours are clusters, grey is what nobody knows yet.
"""

# ruff: noqa: E501 - rows of coordinates

import math
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, GREY, INK = "#2f6db5", "#e07b29", "#3a9b62", "#b9bec6", "#22272e"
PANEL, GAP, HEIGHT = 230, 24, 226


class Drawing:
    """A list of SVG elements; x and y are moved by the panel that is drawn."""

    def __init__(self, width, height, title):
        self.width, self.height, self.title = width, height, title
        self.parts, self.x0, self.y0 = [], 0, 0

    def add(self, element):
        self.parts.append(element)

    def at(self, x, y):
        return f"{x + self.x0:.1f}", f"{y + self.y0:.1f}"

    def disc(self, x, y, colour=GREY, r=8, faint=False):
        cx, cy = self.at(x, y)
        self.add(f'<circle cx="{cx}" cy="{cy}" r="{r}" fill="{colour}" fill-opacity="{0.25 if faint else 1}"/>')

    def ring(self, x, y, rx, ry, colour=INK, dash="4 3"):
        cx, cy = self.at(x, y)
        style = f'fill="none" stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dash}"'
        self.add(f'<ellipse cx="{cx}" cy="{cy}" rx="{rx}" ry="{ry}" {style}/>')

    def model(self, x, y, colour=GREY, size=18, label=""):
        px, py = self.at(x - size / 2, y - size / 2)
        self.add(f'<rect x="{px}" y="{py}" width="{size}" height="{size}" rx="3" fill="{colour}"/>')
        if label:
            self.text(x, y + 4, label, size=11, colour="#fff")

    def box(self, x, y, w, h, label="", colour=INK, fill="none", size=12):
        px, py = self.at(x, y)
        style = f'fill="{fill}" stroke="{colour}" stroke-width="1.4"'
        self.add(f'<rect x="{px}" y="{py}" width="{w}" height="{h}" rx="6" {style}/>')
        lines = label.split("\n") if label else []
        for number, line in enumerate(lines):
            self.text(x + w / 2, y + h / 2 + 4 + (number - (len(lines) - 1) / 2) * (size + 3), line, size=size)

    def text(self, x, y, words, size=12, anchor="middle", colour=INK, bold=False):
        px, py = self.at(x, y)
        weight = ' font-weight="600"' if bold else ""
        self.add(
            f'<text x="{px}" y="{py}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(words)}</text>'
        )

    def arrow(self, x1, y1, x2, y2, colour=INK, width=1.4):
        a, b = self.at(x1, y1), self.at(x2, y2)
        angle = math.atan2(y2 - y1, x2 - x1)
        ends = [self.at(x2 - 7 * math.cos(angle + s), y2 - 7 * math.sin(angle + s)) for s in (0.4, -0.4)]
        self.add(f'<line x1="{a[0]}" y1="{a[1]}" x2="{b[0]}" y2="{b[1]}" stroke="{colour}" stroke-width="{width}"/>')
        points = " ".join(",".join(p) for p in (b, *ends))
        self.add(f'<polygon points="{points}" fill="{colour}"/>')

    def line(self, x1, y1, x2, y2, colour=INK, width=1.2):
        a, b = self.at(x1, y1), self.at(x2, y2)
        self.add(f'<line x1="{a[0]}" y1="{a[1]}" x2="{b[0]}" y2="{b[1]}" stroke="{colour}" stroke-width="{width}"/>')

    def pie(self, x, y, share, one, other, r=9):
        """A disc of two colours, the first with this share."""
        self.disc(x, y, other, r)
        angle, (cx, cy) = 2 * math.pi * share, self.at(x, y)
        ex, ey = self.at(x + r * math.sin(angle), y - r * math.cos(angle))
        tx, ty = self.at(x, y - r)
        large = int(share > 0.5)
        self.add(f'<path d="M{cx},{cy} L{tx},{ty} A{r},{r} 0 {large} 1 {ex},{ey} Z" fill="{one}"/>')

    def svg(self):
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img"'
        style = 'font-family="Helvetica, Arial, sans-serif"'
        paper = f'<rect width="{self.width}" height="{self.height}" fill="#fff"/>'
        body = "\n".join([paper, *self.parts])
        return f"{head} {style}>\n<title>{escape(self.title)}</title>\n{body}\n</svg>\n"


def three(name, title, *panels):
    """A figure of three panels, each a caption and a function that draws."""
    drawing = Drawing(3 * PANEL + 2 * GAP + 20, HEIGHT, title)
    for number, (caption, draw) in enumerate(panels):
        drawing.x0, drawing.y0 = 10 + number * (PANEL + GAP), 8
        drawing.box(0, 0, PANEL, 160, colour="#d5d9df", fill="#fafbfc")
        draw(drawing)
        for row, line in enumerate(caption.split("\n")):
            drawing.text(PANEL / 2, 180 + 16 * row, f"{number + 1}. {line}" if row == 0 else line, size=12.5)
        if number:
            drawing.arrow(-GAP + 3, 80, -3, 80)
    return HERE / "algorithms" / "figures" / f"{name}.svg", drawing.svg()


SPREAD = [
    (45, 95),
    (62, 118),
    (84, 92),
    (70, 72),
    (150, 52),
    (170, 74),
    (188, 48),
    (166, 30),
    (165, 126),
    (186, 140),
    (198, 116),
]
TRUE = [BLUE] * 4 + [ORANGE] * 4 + [GREEN] * 3
ROW = [25, 61, 97, 133, 169, 205]
KINDS = [BLUE, BLUE, ORANGE, ORANGE, BLUE, ORANGE]


def rows(models, clients, *, down=False, up=False):
    """Models above, clients below, with arrows of the clients' colours."""

    def draw(d):
        places = [115 + 40 * (j - (len(models) - 1) / 2) for j in range(len(models))]
        for x, colour in zip(places, models, strict=True):
            d.model(x, 32, colour)
        for x, colour in zip(ROW, clients, strict=True):
            d.disc(x, 128, colour)
            near = places[models.index(colour)] if colour in models else 115
            if down:
                d.arrow(115, 46, x, 116, GREY)
            if up:
                d.arrow(x, 117, near, 45, colour)

    return draw


def cloud(colours, *, rings=(), edges=(), centres=()):
    """Clients as points: their own models, near or far from each other."""

    def draw(d):
        for a, b in edges:
            d.line(*SPREAD[a], *SPREAD[b], GREY)
        for (x, y), colour in zip(SPREAD, colours, strict=True):
            d.disc(x, y, colour, r=7)
        for x, y, rx, ry, colour in rings:
            d.ring(x, y, rx, ry, colour)
        for x, y, colour in centres:
            d.model(x, y, colour, 15)

    return draw


RINGS = ((65, 94, 42, 44, BLUE), (169, 52, 40, 40, ORANGE), (184, 128, 34, 30, GREEN))
EDGES = ((0, 1), (0, 3), (2, 3), (1, 2), (4, 5), (5, 6), (4, 7), (6, 7), (8, 9), (9, 10), (8, 10))
MEANS = ((65, 94, BLUE), (169, 52, ORANGE), (184, 128, GREEN))


def updates(split):
    def draw(d):
        for angle in (-0.5, -0.3, -0.1):
            d.arrow(115, 84, 115 - 75 * math.cos(angle), 84 + 75 * math.sin(angle), BLUE if split else GREY, 2)
            d.arrow(115, 84, 115 + 75 * math.cos(angle), 84 + 75 * math.sin(angle) + 34, ORANGE if split else GREY, 2)
        d.arrow(115, 84, 117, 66, INK, 3)
        d.model(115, 84, GREY)
        d.text(115, 146, "split by direction" if split else "mean short, members long", size=11.5)

    return draw


def homes(shared):
    """Clients with examples of several clusters."""

    def draw(d):
        for number, kinds in enumerate(((BLUE, BLUE, ORANGE), (ORANGE, GREEN, GREEN), (BLUE, GREEN, ORANGE))):
            x = 12 + number * 72
            d.box(x, 86, 62, 62, colour=GREY)
            for place, colour in enumerate(kinds * 2):
                d.disc(x + 14 + 17 * (place % 3), 104 + 26 * (place // 3), colour if shared else GREY, r=6)

    return draw


def then(*draws):
    def draw(d):
        for one in draws:
            one(d)

    return draw


def words(*placed):
    def draw(d):
        for x, y, text, *rest in placed:
            d.text(x, y, text, size=rest[0] if rest else 11.5)

    return draw


def densities(d):
    for x, colour in zip((50, 115, 180), (BLUE, ORANGE, GREEN), strict=True):
        d.ring(x, 40, 26, 16, colour, dash="1 0")
        d.model(x, 40, colour, 10)


def centres(d):
    for number, colours in enumerate(((BLUE, ORANGE), (ORANGE, GREEN), (BLUE, GREEN))):
        for place, colour in enumerate(colours):
            d.model(30 + 72 * number + 26 * place, 118, colour, 12)


def centre_arrows(d):
    for number, colours in enumerate(((BLUE, ORANGE), (ORANGE, GREEN), (BLUE, GREEN))):
        for place, colour in enumerate(colours):
            top = {BLUE: 50, ORANGE: 115, GREEN: 180}[colour]
            d.arrow(30 + 72 * number + 26 * place, 108, top, 54, colour)


def mixtures(d):
    for j, colour in enumerate((BLUE, ORANGE)):
        d.model(85 + 60 * j, 32, colour)
    for x, share in zip(ROW, (0.9, 0.75, 0.2, 0.5, 1.0, 0.1), strict=True):
        d.pie(x, 126, share, BLUE, ORANGE)


def drawn(d):
    mixtures(d)
    for x, j, colour in (
        (25, 0, BLUE),
        (61, 0, BLUE),
        (133, 0, BLUE),
        (133, 1, ORANGE),
        (97, 1, ORANGE),
        (205, 1, ORANGE),
    ):
        d.arrow(85 + 60 * j, 44, x, 114, colour)


def pulled(d):
    d.model(50, 60, BLUE)
    d.model(180, 60, ORANGE)
    d.pie(105, 112, 0.6, BLUE, ORANGE, r=11)
    d.arrow(97, 104, 60, 68, BLUE, 2.4)
    d.arrow(114, 104, 170, 67, ORANGE, 1.4)


def subspace(d):
    d.line(20, 130, 210, 40, GREY, 2)
    d.line(30, 40, 205, 140, GREY, 2)
    for x, y in ((50, 60), (80, 120), (140, 50), (170, 110), (115, 140), (190, 70), (40, 110), (100, 35)):
        d.disc(x, y, GREY, r=6)
    d.model(115, 87, INK, 14)


def anchors(d):
    d.line(20, 130, 210, 40, GREY, 2)
    d.line(30, 40, 205, 140, GREY, 2)
    for x, y, colour in (
        (50, 116, BLUE),
        (58, 112, BLUE),
        (180, 56, ORANGE),
        (172, 60, ORANGE),
        (180, 126, GREEN),
        (188, 130, GREEN),
    ):
        d.arrow(115, 87, x, y, colour, 1.6)
        d.disc(x, y, colour, r=6)


def game(d):
    d.box(10, 20, 60, 34, "code\n+ noise", size=11)
    d.box(92, 20, 66, 34, "generator", fill="#eaf1fa", size=11)
    d.box(180, 20, 44, 34, "made", size=11)
    d.box(160, 104, 64, 34, "critic", fill="#fbeee1", size=11)
    d.box(60, 104, 66, 34, "encoder", fill="#e6f4ec", size=11)
    d.arrow(70, 37, 90, 37)
    d.arrow(158, 37, 178, 37)
    d.arrow(202, 54, 196, 102)
    d.arrow(186, 54, 120, 102)
    d.arrow(62, 104, 40, 56)
    d.text(38, 92, "again", size=11)


def three_networks(d):
    for x, fill in ((66, "#eaf1fa"), (115, "#fbeee1"), (164, "#e6f4ec")):
        d.box(x - 18, 18, 36, 26, fill=fill)
    for x in ROW:
        d.disc(x, 128, GREY)
        d.arrow(x, 117, 115, 48, GREY)


def alone(d):
    for x, colour in zip(ROW, KINDS, strict=True):
        d.disc(x, 128, colour)
        d.model(x, 84, colour, 14)
        d.arrow(x, 117, x, 93, colour)
    d.text(115, 36, "no server", size=11.5)


TWO = [BLUE, ORANGE]
UNKNOWN = [GREY] * 6
NOBODY = [GREY] * len(SPREAD)
TRAINED_ALONE = ("every client trains alone", cloud(NOBODY))
MIXED_HALF = [BLUE, BLUE, ORANGE, BLUE, ORANGE, ORANGE, ORANGE, BLUE, GREEN, GREEN, GREEN]


def of_algorithms():
    yield three(
        "ifca",
        "IFCA: send all models, choose, average within clusters",
        ("the server sends all k models", rows(TWO, UNKNOWN, down=True)),
        ("each client picks the model with\nthe smallest loss and trains it", rows(TWO, KINDS)),
        ("the server averages\nwithin clusters", rows(TWO, KINDS, up=True)),
    )
    yield three(
        "sr-fca",
        "SR-FCA: clusters from local models, then refined",
        TRAINED_ALONE,
        ("models within λ form clusters;\ntheir number is found", cloud(MIXED_HALF, edges=EDGES, rings=RINGS)),
        ("refine: trimmed training,\nregroup, join near clusters", cloud(TRUE, rings=RINGS, centres=MEANS)),
    )
    yield three(
        "cfl",
        "CFL: one model, split when client updates disagree",
        ("FedAvg for all clients", rows([GREY], UNKNOWN, up=True)),
        ("mean update small, clients' large", updates(False)),
        ("two clusters, by the cosine of\nupdates; repeat in each", updates(True)),
    )
    yield three(
        "moment-descent",
        "Moment descent: a subspace from residuals, anchors inside it, then FedX",
        ("a panel's residual moments\ngive a k-dimensional subspace", subspace),
        ("anchor clients move to their\nown models inside it", anchors),
        (
            "groups of anchors start FedX",
            rows([BLUE, ORANGE, GREEN], [BLUE, GREEN, ORANGE, ORANGE, BLUE, GREEN], up=True),
        ),
    )
    yield three(
        "fedx",
        "FedX: choose, refine, average over all clients",
        ("k models are given", rows(TWO, UNKNOWN, down=True)),
        ("each client refines the one that\nfits, by FedAvg or FedProx", rows(TWO, KINDS)),
        ("mean over all clients; those that\nchose another change nothing", rows(TWO, KINDS, up=True)),
    )
    yield three(
        "one-shot-ifca",
        "One-shot IFCA: SR-FCA's first clusters start IFCA",
        TRAINED_ALONE,
        ("models within λ form clusters;\ntheir means are models", cloud(TRUE, rings=RINGS, centres=MEANS)),
        ("IFCA continues from there", rows([BLUE, ORANGE, GREEN], [BLUE, GREEN, ORANGE, ORANGE, BLUE, GREEN], up=True)),
    )
    yield three(
        "one-shot",
        "One-shot: cluster local models once, then train inside",
        TRAINED_ALONE,
        ("k-means on the models", cloud(TRUE, rings=RINGS)),
        (
            "FedAvg inside every cluster",
            rows([BLUE, ORANGE, GREEN], [BLUE, GREEN, ORANGE, ORANGE, BLUE, GREEN], up=True),
        ),
    )
    yield three(
        "local-kmeans",
        "Local-KMeans: serve the means of local models",
        TRAINED_ALONE,
        ("k-means on the models", cloud(TRUE, rings=RINGS)),
        ("each cluster's mean is served;\nno further training", cloud(TRUE, rings=RINGS, centres=MEANS)),
    )
    yield three(
        "fedsoft",
        "FedSoft: importance, draws, and a pull towards all models",
        ("importance: the share of examples\nthat each model fits best", mixtures),
        ("each model draws clients\nin proportion", drawn),
        ("a client trains once, pulled\ntowards all models", pulled),
    )
    yield three(
        "uifca",
        "UIFCA: a density for every cluster of examples",
        ("k densities are sent to clients", then(densities, homes(False))),
        ("each example takes the density\nunder which it is most likely", then(densities, homes(True))),
        ("each density is trained on its\nexamples, then averaged", then(densities, centres, centre_arrows)),
    )
    yield three(
        "kfed",
        "k-FED: k-means at each client, then on the centres",
        ("k-means at every client", homes(True)),
        ("centres and counts are sent;\nthe server clusters the centres", then(densities, centres, centre_arrows)),
        ("an example has the cluster of\nits centre at its own client", then(densities, homes(True))),
    )
    yield three(
        "clustergan",
        "ClusterGAN: adversarial training at clients, averaged",
        ("adversarial training at clients:\nthe encoder must recover codes", game),
        ("the server averages the three\nnetworks, as FedAvg does", three_networks),
        (
            "an example's cluster is the code\nthat the encoder finds",
            then(homes(True), words((115, 40, "encoder → code j"), (115, 62, "labels are not sent"))),
        ),
    )
    yield three(
        "baselines",
        "Baselines: one model, each client alone, the oracle",
        ("FedAvg, FedProx: one model\nfor all clients", rows([INK], [INK] * 6, up=True)),
        ("Alone: a model for each client,\nwhich never leaves it", alone),
        ("Oracle: training inside the\ntrue clusters, if known", rows(TWO, KINDS, up=True)),
    )


def two_rooms():
    d = Drawing(760, 250, "Server side, the cohort as the door, and client side")
    d.box(10, 20, 250, 210, fill="#f3f6fb", colour="#c6cfdb")
    d.text(135, 46, "server's room", bold=True, size=14)
    for y, line in (
        (84, "algorithm.run(fed, start)"),
        (112, "cohorts: who, how many examples"),
        (136, "replies: rows, or sums"),
        (164, "yields a snapshot each round"),
    ):
        d.text(135, y, line, size=13)
    d.box(330, 70, 100, 110, fill="#fff", colour=INK)
    d.text(380, 92, "the door", bold=True, size=13)
    d.text(380, 120, "cohort.map", size=12)
    d.text(380, 140, "cohort.sum", size=12)
    d.text(380, 166, "checks replies", size=11)
    d.arrow(262, 108, 328, 108)
    d.text(295, 100, "models", size=11)
    d.arrow(328, 146, 262, 146)
    d.text(295, 164, "replies", size=11)
    for number, colour in enumerate((BLUE, ORANGE, BLUE)):
        y = 20 + number * 74
        d.box(500, y, 250, 62, fill="#f7faf6", colour="#c9d8c9")
        d.disc(524, y + 31, colour, r=9)
        d.text(642, y + 26, "client's room: @on_client", bold=True, size=12)
        d.text(642, y + 46, "its examples, keys, memory", size=12)
        d.arrow(432, 112 + 10 * (number - 1), 498, y + 24, GREY)
        d.arrow(498, y + 40, 432, 134 + 12 * (number - 1), INK)
    return HERE / "explanation" / "figures" / "two-rooms.svg", d.svg()


def choosing():
    d = Drawing(780, 520, "Which algorithm: a decision tree")
    questions = [
        ("corymb advise: do clusters pay?", "no", "fedavg, or alone"),
        ("clusters of examples, no labels?", "yes", "uifca, kfed"),
        ("linear regression,\nclusters differ in coefficients?", "yes", "moment-descent"),
        ("only one exchange?", "yes", "one-shot, local-kmeans"),
        ("is a client a mixture of groups?", "yes", "fedsoft, ifca --soft"),
        ("is the number of groups known?", "no", "ifca --k auto, sr-fca"),
    ]
    for number, (question, word, answer) in enumerate(questions):
        y = 14 + 74 * number
        d.box(30, y, 300, 48, question, fill="#f3f6fb", colour="#c6cfdb", size=13.5)
        d.arrow(332, y + 24, 452, y + 24)
        d.text(392, y + 18, word, size=12.5)
        d.box(456, y, 290, 48, answer, fill="#f7faf6", colour="#c9d8c9", size=14)
        d.arrow(180, y + 49, 180, y + 73)
        d.text(200, y + 66, "yes" if word == "no" else "no", size=12.5, anchor="start")
    d.box(30, 14 + 74 * 6, 300, 44, "ifca --k K", fill="#f7faf6", colour="#c9d8c9", size=14)
    return HERE / "explanation" / "figures" / "choosing.svg", d.svg()


def figures():
    """The path and the contents of every figure."""
    return dict([*of_algorithms(), two_rooms(), choosing()])


if __name__ == "__main__":
    for path, text in figures().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(HERE))
