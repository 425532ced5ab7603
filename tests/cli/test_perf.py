"""tide-perf as a user runs it: table, JSON, exit codes, usage errors."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TIDE_BUILD", ROOT / "build")).resolve()
PERF = BUILD / "tide-perf"
ROW = re.compile(r"^ +\d+ +[a-z]")
VARIANTS = {
    "ag": ["tide", "flat"],
    "rs": ["tide-in-place", "tide-slot-reuse", "flat"],
}
ROW_KEYS = {
    "op",
    "ranks",
    "local",
    "bytes",
    "variant",
    "time_ms",
    "min_ms",
    "p99_ms",
    "algbw",
    "busbw",
    "wrong",
    "buffer_bytes",
}


def perf(*words, **environment):
    """Runs tide-perf; ranks that hang would end with the deadline."""
    env = dict(os.environ, TIDE_TIMEOUT_MS="30000", **environment)
    for name in ("TIDE_LOCAL_SIZE", "RANK", "OMPI_COMM_WORLD_RANK"):
        if name not in environment:
            env.pop(name, None)
    return subprocess.run(
        [PERF, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        env=env,
    )


def quick(*words, **environment):
    return perf(*words, "--iters", 2, "--warmup", 1, **environment)


def table_of(run):
    """The cells of each row of a run that went well."""
    assert run.returncode == 0, run.stdout + run.stderr
    return [line.split() for line in run.stdout.splitlines() if ROW.match(line)]


@pytest.mark.parametrize("op", ["ag", "rs"])
@pytest.mark.parametrize("local", [1, 2, 4])
def test_table(op, local):
    words = ["--op", op, "--local", local, "--bytes", "64K,100K"]
    run = quick(*words, "--baseline", "flat")
    rows = table_of(run)
    expected = [
        (str(size), variant)
        for size in (65536, 102400)
        for variant in VARIANTS[op]
    ]
    assert [tuple(row[:2]) for row in rows] == expected
    assert all(len(row) == 9 and row[7] == "0" for row in rows)
    for row in rows:
        low, median, high = map(float, row[2:5])
        assert 0 < low <= median <= high
    assert f"nodes {4 // local} x local {local}" in run.stdout
    assert run.stdout.splitlines()[-1] == "# Wrong elements: 0  OK"
    assert run.stderr == ""  # no progress where there is no terminal


@pytest.mark.parametrize("op", ["ag", "rs"])
def test_json(op, tmp_path):
    path = tmp_path / "out.json"
    words = ["--op", op, "--local", 2, "--bytes", "64K", "--json", path]
    rows = table_of(quick(*words, "--baseline", "flat"))
    data = json.loads(path.read_text())
    assert data["tool"] == "tide-perf"
    assert data["ok"] is True
    assert data["arguments"][:2] == ["--op", op]
    assert data["backend"] == "host"
    assert {"version", "commit", "reads_private"} <= set(data)
    assert data["machine"]["cores"] >= 1
    assert len(data["rows"]) == len(rows)
    for row, cells in zip(data["rows"], rows, strict=True):
        assert set(row) == ROW_KEYS
        assert (row["op"], row["ranks"], row["local"]) == (op, 4, 2)
        assert (str(row["bytes"]), row["variant"]) == tuple(cells[:2])
        assert row["wrong"] == 0
        total = row["ranks"] * row["bytes"]
        assert row["algbw"] == pytest.approx(total / row["time_ms"] / 1e6)
        assert row["busbw"] == pytest.approx(row["algbw"] * 3 / 4)
    buffers = {row["variant"]: row["buffer_bytes"] for row in data["rows"]}
    tide = [size for name, size in buffers.items() if name != "flat"]
    assert all(size < buffers["flat"] for size in tide)


@pytest.mark.parametrize("op", ["ag", "rs"])
@pytest.mark.parametrize(
    "group",
    [
        "llama3.1-8b",
        "llama3.1-70b",
        "qwen3-30b-a3b",
        "wan2.2",
        "uneven",
        "empty",
        "tiny",
    ],
)
def test_groups(op, group):
    words = ["--op", op, "--local", 2, "--baseline", "flat"]
    run = quick(*words, "--group", group, "--scale", 512)
    assert [row[1] for row in table_of(run)] == VARIANTS[op]


def test_lists(tmp_path):
    """Both ops on several groups, in one process: rows group by group."""
    path, file = tmp_path / "out.json", tmp_path / "group.txt"
    file.write_text("6x8\n")
    words = ["--op", "rs,ag", "--group", f"uneven,{file}", "--scale", "64,2"]
    run = quick(*words, "--verify-runs", 2, "--json", path)
    rows = table_of(run)
    names = [*VARIANTS["rs"][:-1], *VARIANTS["ag"][:-1]]
    assert [row[1] for row in rows] == 2 * names
    data = json.loads(path.read_text())
    assert [row["op"] for row in data["rows"]] == 2 * ["rs", "rs", "ag"]
    assert data["rows"][3]["bytes"] == 8 * 4  # one of 3 rows, fp32
    assert data["groups"] == [
        {"name": "uneven", "scale": 64, "parameters": 8, "rows": 3},
        {"name": str(file), "scale": 2, "parameters": 1, "rows": 3},
    ]
    lines = [x for x in run.stdout.splitlines() if re.match("# (ag|rs|gr)", x)]
    assert lines == [
        "# group uneven, scale 64: 8 parameters",
        *["# rs", "# ag"],
        f"# group {file}, scale 2: 1 parameters",
        *["# rs", "# ag"],
    ]


def test_lists_of_variants():
    """A mode is for the op that has it, a baseline for all; bytes are those
    of the shard, or of the fp32 output."""
    words = ["--op", "ag,rs", "--mode", "in-place", "--baseline", "flat"]
    rows = table_of(quick(*words, "--bytes", "64K,100K"))
    names = ["tide", "flat", "tide-in-place", "flat"]
    assert [row[:2] for row in rows] == [
        [size, name] for size in ("65536", "102400") for name in names
    ]


def test_list_groups():
    run = perf("--list-groups")
    assert run.returncode == 0
    sizes = {}
    for line in run.stdout.splitlines()[1:]:
        name, count, mib = line.split()[:3]
        sizes[name] = (int(count), float(mib))
    # Parameters of one block: 218,112,000, and 855,654,400.
    assert sizes["llama3.1-8b"] == (9, 416.016)
    assert sizes["llama3.1-70b"] == (9, 1632.031)
    assert sizes["qwen3-30b-a3b"][0] == 12
    assert sizes["wan2.2"][0] == 27
    assert sizes["tiny"][0] >= 2000
    assert {"uneven", "empty"} <= set(sizes)


@pytest.mark.parametrize("op", ["ag", "rs"])
def test_group_file(op, tmp_path):
    path = tmp_path / "group.txt"
    path.write_text("# two\n6x8 f32 1\n\n4097 u8 # odd\n24x10 bf16 1\n0x5\n")
    words = ["--op", op, "--ranks", 2, "--baseline", "flat"]
    run = quick(*words, "--group", path)
    rows = table_of(run)
    # Elements of a rank's shards, and their bytes in 16-byte units.
    elems = 6 * 4 + 2049 + 24 * 5
    want = {"rs": elems * 4, "ag": 96 + 2064 + 240}[op]
    assert [row[0] for row in rows] == [str(want)] * len(VARIANTS[op])
    assert "4 parameters" in run.stdout


@pytest.mark.parametrize(
    "line, part",
    [
        ("4x", "group.txt:2: the shape"),
        ("-4", "group.txt:2: the shape"),
        ("4 f8", "group.txt:2: there is no such dtype"),
        ("4 f32 1", "group.txt:2: the sharded dimension"),
        ("4x4 f32 0 0", "group.txt:2: more than"),
        ("1x9999999999x9999999999", "group.txt:2: the shape is too large"),
        ("99999999999999999999", "group.txt:2: the shape"),
        ("6x7 bf16 1", "size 7"),
    ],
)
def test_bad_group_file(line, part, tmp_path):
    path = tmp_path / "group.txt"
    path.write_text(f"4\n{line}\n")
    run = perf("--op", "ag", "--ranks", 2, "--group", path)
    assert run.returncode == 2
    assert part in run.stderr
    assert run.stdout == ""


def test_modes():
    run = quick("--op", "rs", "--bytes", "64K", "--mode", "slot-reuse")
    assert [row[1] for row in table_of(run)] == ["tide-slot-reuse"]


def test_in_place_where_reading_is_forbidden():
    run = quick("--op", "rs", "--bytes", "64K", TIDE_READV="0")
    assert [row[1] for row in table_of(run)] == VARIANTS["rs"][:2]
    assert "# in-place copies first" in run.stdout


@pytest.mark.parametrize(
    "words, part",
    [
        ([], "--op is missing"),
        (["--op", "xy"], "neither ag nor rs"),
        (["--op", "ag,xy"], "neither ag nor rs"),
        (["--op", "ag,ag"], "ag twice"),
        (["--op", "ag,"], "--op ag,: not up to 16 names"),
        (["--op", ",".join(17 * ["ag"])], "not up to 16 names"),
        (["--op", "ag,rs", "--mode", "push"], 'no "push"'),
        (["--op", "ag", "--group", "tiny,,empty"], "--group tiny,,empty"),
        (["--op", "ag", "--group", "tiny,nowhere"], "no built-in group"),
        (["--op", "ag", "--group", ",".join(17 * ["tiny"])], "up to 16"),
        (["--op", "ag", "--group", "tiny", "--scale", "1,2"], "--scale 1,2"),
        (["--op", "ag", "--group", "tiny", "--scale", ""], "--scale"),
        (["--op", "ag", "--ranks", 0], "1 to 1024"),
        (["--op", "ag", "--ranks", "4x"], "1 to 1024"),
        (["--op", "ag", "--local", 3], "3"),
        (["--op", "ag", "--iters", 0], "--iters 0"),
        (["--op", "ag", "--iters"], "--iters"),
        (["--op", "ag", "--bytes", "0"], "--bytes 0"),
        (["--op", "ag", "--bytes", "1M,"], "--bytes 1M,"),
        (["--op", "ag", "--bytes", "9999999999G"], "--bytes"),
        (["--op", "ag", "--bytes", "1M", "--group", "tiny"], "exclude"),
        (["--op", "ag", "--group", "nowhere"], "no built-in group"),
        (["--op", "ag", "--group", "tiny", "--scale", "0.5"], "--scale"),
        (["--op", "ag", "--scale", "2"], "--scale needs --group"),
        (["--op", "ag", "--mode", "in-place"], 'no "in-place"'),
        (["--op", "ag", "--mode", "push"], 'no "push"'),
        (["--op", "ag", "--baseline", "nccl"], 'no "nccl"'),
        (["--op", "ag", "--sm-time"], "--sm-time needs"),
        (["--op", "ag", "--pipelined", 0], "--pipelined 0"),
        (["--op", "ag", "--verify-runs", 1], "--verify-runs 1"),
        (["--op", "ag", "--soak", 8], "--soak takes no --op"),
        (["--soak", 0], "--soak 0"),
        (["--op", "rs", "--mode", "flat"], 'no "flat"'),
        (["--op", "rs", "--baseline", ""], 'no ""'),
        (["--op", "ag", "--backend", "cuda"], "cuda"),
        (["--op", "ag", "--backend", "nope"], "nope"),
        (["--op", "ag", "--json", "/nowhere/x.json"], "/nowhere/x.json"),
        (["--nonsense"], "--nonsense"),
        (["--op", "ag", "more"], "more"),
    ],
)
def test_usage(words, part):
    run = perf(*words)
    assert run.returncode == 2
    assert part in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert run.stdout == ""


@pytest.mark.parametrize("op", ["ag", "rs"])
def test_passes_beside_the_timed_one(op, tmp_path):
    path = tmp_path / "out.json"
    words = ["--op", op, "--bytes", "64K", "--pipelined", 3, "--local", 2]
    run = quick(*words, "--verify-runs", 3, "--json", path)
    assert [row[1] for row in table_of(run)] == VARIANTS[op][:-1]
    assert "iterations 2 of 3 calls" in run.stdout
    assert json.loads(path.read_text())["verify_runs"] == 3


@pytest.mark.parametrize("local", [1, 2, 4])
def test_soak(local, tmp_path):
    path = tmp_path / "out.json"
    run = perf("--soak", 40, "--local", local, "--json", path)
    assert [row[1] for row in table_of(run)] == ["soak"]
    (row,) = json.loads(path.read_text())["rows"]
    assert (row["op"], row["bytes"], row["wrong"]) == ("ag+rs", 32768, 0)


def start_rank(names, port, rank, count, *words, timeout_ms=20000):
    """One rank as torchrun or mpirun would start it."""
    values = map(str, (rank, count, rank, count))
    return subprocess.Popen(
        [PERF, *map(str, words)],
        env=dict(
            os.environ,
            **dict(zip(names, values, strict=True)),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TIDE_TIMEOUT_MS=str(timeout_ms),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port():
    """A port P such that P + 1 is free, which is where ranks meet."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1] - 1


TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
OPEN_MPI = tuple(
    f"OMPI_COMM_WORLD_{name}"
    for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
)


@pytest.mark.parametrize("names", [TORCHRUN, OPEN_MPI])
def test_ranks_that_were_started(names, tmp_path):
    path = tmp_path / "out.json"
    words = ["--op", "rs", "--bytes", "64K", "--iters", 2, "--json", path]
    port = free_port()
    ranks = [start_rank(names, port, rank, 3, *words) for rank in range(3)]
    ends = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], ends
    assert "ranks 3: nodes 1 x local 3" in ends[0][0]
    assert [out for out, _ in ends[1:]] == ["", ""]
    assert [err for _, err in ends] == ["", "", ""]
    assert len(json.loads(path.read_text())["rows"]) == 2


@pytest.mark.parametrize("rank, part", [(0, "not all ranks"), (1, "rank 0")])
def test_started_rank_is_alone(rank, part):
    words = (TORCHRUN, free_port(), rank, 2, "--op", "ag")
    alone = start_rank(*words, timeout_ms=500)
    out, err = alone.communicate(timeout=30)
    assert alone.returncode == 1
    assert part in err and "500 ms" in err
    assert out == ("# FAILED\n" if rank == 0 else "")


def test_full_disk():
    run = quick("--op", "ag", "--bytes", "1K", "--json", "/dev/full")
    assert run.returncode == 1
    assert "/dev/full cannot be written" in run.stderr


def test_help_version_and_environment():
    text = perf("--help")
    assert text.returncode == 0
    for option in ("--op", "--list-groups", "--baseline", "--json"):
        assert option in text.stdout
    assert re.fullmatch(r"tide-perf \d+\.\d+\.\d+\n", perf("--version").stdout)
    table = perf("--env").stdout.splitlines()
    assert table[0].startswith("| variable | default |")
    assert any(line.startswith("| `TIDE_TIMEOUT_MS` |") for line in table)
    assert all(line.count("|") == 6 for line in table)


def children_of(pid):
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def test_killed_rank():
    """The survivors end in time, the dead rank is named, nobody is left."""
    words = ["--op", "ag", "--bytes", "64K", "--iters", "1000000"]
    process = subprocess.Popen(
        [PERF, *words],
        env=dict(os.environ, TIDE_TIMEOUT_MS="2000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().startswith("# tide-perf")
    time.sleep(0.3)
    ranks = children_of(process.pid)
    assert len(ranks) == 4
    os.kill(ranks[2], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out.splitlines()[-1] == "# FAILED"
    assert "rank 2 ended with code 137" in err
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
