"""tide-plan as a user runs it: plans, checks, predictions, trace, page."""

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TIDE_BUILD", ROOT / "build")).resolve()
PLAN = BUILD / "tide-plan"
MACHINES = sorted(path.stem for path in (ROOT / "machines").glob("*.json"))
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def plan(*words):
    return subprocess.run(
        [PLAN, *map(str, words)], capture_output=True, text=True, timeout=120
    )


def plan_json(*words):
    """The JSON of a run that went well."""
    run = plan(*words, "--json")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def rows_of(*words):
    return {
        (row["ranks"], row["bytes"], row["variant"]): row
        for row in plan_json(*words)["rows"]
    }


# --- Plans ---


@pytest.mark.parametrize("op", ["ag", "rs"])
@pytest.mark.parametrize("multicast", [0, 1])
@pytest.mark.parametrize("shape", [(1, 4), (2, 2), (3, 4), (5, 1)])
def test_verify(op, multicast, shape):
    words = ["--op", op, "--nodes", shape[0], "--local", shape[1]]
    words += ["--group", "uneven", "--multicast", multicast, "--verify"]
    run = plan(*words)
    assert (run.returncode, run.stdout) == (0, "verified\n"), run.stderr
    assert plan_json(*words)["verdict"] == "verified"


@pytest.mark.parametrize("group", ["llama3.1-70b", "qwen3-30b-a3b", "empty"])
def test_groups(group):
    run = plan("--op", "rs", "--nodes", 2, "--group", group, "--verify")
    assert run.stdout == "verified\n", run.stderr


def test_text():
    words = ["--op", "ag", "--nodes", 2, "--local", 2, "--bytes", "1M"]
    run = plan(*words, "--rank", 3, "--text")
    assert run.returncode == 0
    lines = run.stdout.splitlines()
    assert lines[0].startswith("# all-gather rank 3 of 2 x 2")
    ops = [line for line in lines if not line.startswith("#")]
    pattern = re.compile(r"3\.(copy|sum|send|recv|land) (\d+): \w+")
    assert [int(pattern.match(op)[2]) for op in ops] == list(range(len(ops)))
    assert sum(" put " in op for op in ops) == 1


def test_stats():
    words = ["--op", "ag", "--nodes", 4, "--local", 2, "--bytes", "16M"]
    stats = plan_json(*words, "--stats")["stats"]
    assert stats["rail_bytes"] == 3 << 24
    assert stats["rounds"] == 2
    assert stats["buffer_bytes"] == 2 * 4 << 24
    text = plan(*words).stdout
    assert re.search(rf"^rail_bytes +{3 << 24}$", text, re.MULTILINE)


def test_same_twice():
    words = ["--op", "rs", "--nodes", 3, "--sim", "b200-8x400g"]
    assert plan(*words).stdout == plan(*words).stdout


# --- Predictions ---


def test_table():
    words = ["--op", "ag", "--nodes", "1,2", "--bytes", "1M,2M"]
    run = plan(*words, "--sim", "h200-8x400g", "--variant", "tide,ce")
    assert run.returncode == 0
    table = [line.split() for line in run.stdout.splitlines() if line[0] == " "]
    assert [row[1] for row in table] == ["tide", "ce"] * 4
    assert "# all ranks are simulated" in run.stdout
    rows = rows_of(*words, "--sim", "h200-8x400g")
    assert len(rows) == 4 * 7
    assert rows[16, 2 << 20, "tide"]["time_ms"] == pytest.approx(
        float(table[6][3]), abs=0.001
    )


@pytest.mark.parametrize("machine", MACHINES)
def test_built_in_machines(machine):
    """The binary holds the files as they are now."""
    words = ["--op", "rs", "--nodes", 2, "--local", 4, "--bytes", "4M"]
    built_in = rows_of(*words, "--sim", machine)
    assert built_in == rows_of(
        *words, "--sim", ROOT / "machines" / f"{machine}.json"
    )
    assert machine in plan("--list-machines").stdout


def test_more_is_slower():
    words = ["--op", "rs", "--nodes", "2,4,8", "--bytes", "8M,32M"]
    rows = rows_of(*words, "--sim", "b200-8x400g")
    times = {key: row["time_ms"] for key, row in rows.items()}
    for (ranks, size, variant), ms in times.items():
        assert ms > 0
        if size == 8 << 20:
            assert ms < times[ranks, 32 << 20, variant]
        if ranks < 64:
            assert ms < times[2 * ranks, size, variant]


def test_large():
    words = ["--op", "ag", "--nodes", 1024, "--sim", "b200-8x400g"]
    made = plan_json(*words, "--variant", "tide")
    assert "one node" in made["assumption"]
    (row,) = made["rows"]
    rail_ms = 1023 * (32 << 20) / 48.2e6
    assert rail_ms < row["time_ms"] < 1.05 * rail_ms


def paper_rows():
    return plan_json("--paper")["paper"]


def test_paper():
    """Held-out rows: all-gather within 15%, reduce-scatter within 25%."""
    rows = paper_rows()
    held_out = [row for row in rows if not row["fitted"]]
    assert len(rows) == 55
    assert len(held_out) > 35
    for row in rows:
        error = row["time_ms"] / row["paper_ms"] - 1
        limit = 0.15 if row["op"] == "ag" else 0.25
        assert abs(error) < limit, row
    text = plan("--paper").stdout
    assert text.count("held out") == len(held_out)


def test_steps():
    words = ["--step", "llama3.1-70b", "--nodes", 8, "--sim", "b200-8x400g"]
    steps = {
        (step["way"], step["tokens"], step["prefetch"]): step
        for step in plan_json(*words)["steps"]
    }
    assert len(steps) == 4 * 3 * 3
    for (way, tokens, prefetch), step in steps.items():
        assert step["step_ms"] >= step["compute_ms"]
        assert step["exposed_ms"] >= 0
        if prefetch:
            assert step["step_ms"] <= steps[way, tokens, 0]["step_ms"]
            assert step["peak_gib"] >= steps[way, tokens, 0]["peak_gib"]
        if way != "stock":
            stock = steps["stock", tokens, prefetch]
            assert step["peak_gib"] <= stock["peak_gib"]


# --- Trace and page ---


@pytest.fixture(scope="module", params=["ag", "rs"])
def drawn(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    trace, page = folder / "trace.json", folder / "page.html"
    run = plan(
        "--op", request.param, "--nodes", 3, "--local", 4, "--bytes", "2M",
        "--trace", trace, "--html", page,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return request.param, json.loads(trace.read_text()), page


def test_trace(drawn):
    op, trace, _ = drawn
    events = trace["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    names = [e for e in events if e["name"] == "process_name"]
    assert len(names) == 12
    assert {event["pid"] for event in slices} == set(range(12))
    assert any(event["name"] == "put" for event in slices)
    counters = {event["name"] for event in events if event["ph"] == "C"}
    assert {"rail out", "link in"} <= counters
    assert ("stage" if op == "ag" else "recv") in counters


def test_trace_slices_nest(drawn):
    """No two slices of a thread overlap, or the viewer drops one."""
    ends = {}
    slices = [e for e in drawn[1]["traceEvents"] if e["ph"] == "X"]
    for event in sorted(slices, key=lambda e: (e["ts"], e["dur"])):
        thread = event["pid"], event["tid"]
        assert event["ts"] >= ends.get(thread, 0) - 0.0021, event
        ends[thread] = event["ts"] + event["dur"]


def test_trace_arrows(drawn):
    """Every arrow starts in a signal or put, and ends in a wait, later."""
    events = drawn[1]["traceEvents"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    stops = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == stops.keys()
    assert len(starts) > 12
    for key, start in starts.items():
        assert start["name"] == stops[key]["name"]
        assert start["ts"] <= stops[key]["ts"]
        assert start["pid"] != stops[key]["pid"]


class Page(HTMLParser):
    """What a page loads, its scripts, and the ids it has."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.ids, self.data = [], set(), ""
        self.kind = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids.add(attrs.get("id"))
        self.loads += [attrs[k] for k in ("src", "href") if k in attrs]
        self.kind = attrs.get("type") if tag == "script" else None

    def handle_data(self, data):
        if self.kind == "application/json":
            self.data += data


def test_page(drawn):
    op, _, path = drawn
    text = path.read_text()
    page = Page(text)
    assert page.loads == []
    assert "import(" not in text and "url(http" not in text
    assert {"rounds-draw", "latin-draw", "scroll"} <= page.ids
    data = json.loads(page.data)
    assert (data["nodes"], data["local"]) == (3, 4)
    assert len(data["timeline"]) > 50
    sent = {(put[0], put[1]) for put in data["puts"]}
    if op == "ag":
        assert sent == {(n, (n - m) % 3) for n in range(3) for m in (1, 2)}
        return
    assert sent == {(n, m) for n in range(3) for m in range(3) if n != m}
    for node in range(3):
        square = [
            [(cell[0] + node) % 4 for cell in row] for row in data["square"]
        ]
        columns = zip(*square, strict=True)
        assert all(sorted(line) == [0, 1, 2, 3] for line in (*square, *columns))


def browse(page, folder, *words):
    return subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu",
         f"--user-data-dir={folder}/profile", *words, page.as_uri()],
        capture_output=True, text=True, timeout=120, cwd=folder,
    )  # fmt: skip


@pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")
def test_page_in_browser(drawn, tmp_path):
    """The scripts run to their end: the drawings are in the page."""
    op, _, path = drawn
    text = browse(path, tmp_path, "--dump-dom").stdout
    assert text.count("<rect") > 50
    assert ('id="latin"' in text) == (op == "rs")
    assert "3 nodes × 4 ranks" in text


@pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")
def test_page_screenshot(drawn, tmp_path):
    """A blank page of this size has 5 KB as PNG, a drawn one far more."""
    shot = tmp_path / "page.png"
    browse(
        drawn[2], tmp_path, f"--screenshot={shot}", "--window-size=1200,1600"
    )
    picture = shot.read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 40_000


def test_page_escapes(tmp_path):
    """A hostile group name stays a text."""
    group = tmp_path / "<script>alert(1)<x>"
    group.write_text("64x64\n")
    page = tmp_path / "page.html"
    run = plan("--op", "ag", "--group", group, "--html", page)
    assert run.returncode == 0, run.stderr
    assert "<script>alert" not in page.read_text()
    assert "<script>alert" in json.loads(Page(page.read_text()).data)["group"]


# --- Usage ---


@pytest.mark.parametrize(
    "words, reason",
    [
        ([], "--op is missing"),
        (["--op", "bc"], "neither ag nor rs"),
        (["--op", "ag", "--nodes", "0"], "--nodes 0"),
        (["--op", "ag", "--nodes", "x"], "--nodes x"),
        (["--op", "ag", "--nodes", "1,2", "--verify"], "lists are for"),
        (["--op", "ag", "--local", "0"], "--local 0"),
        (["--op", "ag", "--local", "2000"], "--local 2000"),
        (["--op", "ag", "--rank", "8"], "rank 8 of 8 ranks"),
        (["--op", "ag", "--nodes", "1048576"], "too many"),
        (["--op", "ag", "--bytes", "1T"], "--bytes 1T"),
        (["--op", "ag", "--group", "none-such"], "none-such"),
        (["--op", "ag", "--group", "tiny", "--bytes", "1M"], "exclude"),
        (["--op", "ag", "--scale", "2"], "needs --group"),
        (["--op", "ag", "--multicast", "2"], "--multicast 2"),
        (["--op", "ag", "--sim", "none-such"], "none-such"),
        (["--op", "ag", "--sim", "/"], "cannot be read"),
        (["--op", "ag", "--variant", "tide"], "needs --sim"),
        (["--op", "ag", "--sim", MACHINES[0], "--variant", "stock"], "stock"),
        (["--step", "llama3.1-70b"], "needs --sim"),
        (["--step", "gpt", "--sim", MACHINES[0]], "--step gpt"),
        (["--op", "ag", "more"], "what is this"),
        (["--op"], "missing"),
        (["--wat"], "unknown"),
    ],
)
def test_usage(words, reason):
    run = plan(*words)
    assert run.returncode == 2
    assert reason in run.stderr
    assert run.stdout == ""


@pytest.mark.parametrize("option", ["--json", "--trace", "--html"])
def test_cannot_write(option):
    run = plan("--op", "ag", option, "/nowhere/file")
    assert run.returncode == 1
    assert "/nowhere/file cannot be written" in run.stderr


def test_json_file(tmp_path):
    path = tmp_path / "result.json"
    run = plan("--op", "ag", "--stats", "--json", path, "--verify")
    assert run.returncode == 0
    assert "verified" in run.stdout
    assert json.loads(path.read_text())["verdict"] == "verified"


def test_help():
    text = plan("--help").stdout
    manual = (ROOT / "man" / "tide-plan.1").read_text().replace("\\-", "-")
    for option in re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE):
        if option not in ("--help", "--version"):
            assert option in manual
