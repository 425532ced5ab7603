"""tide-perf on the CUDA backend, with the driver and the NCCL of tests/fake."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TIDE_BUILD", ROOT / "build")).resolve()
PERF = BUILD / "tide-perf"
FAKE = BUILD / "fake"
ROW = re.compile(r"^ +\d+ +[a-z]")
BASELINES = "nccl,nccl-ce,nccl-sym,flat,layout"
VARIANTS = {
    "ag": [
        "tide",
        "nccl+copy-out",
        "nccl-ce+copy-out",
        "nccl-sym+copy-out",
        "flat",
        "layout",
    ],
    "rs": [
        "tide-in-place",
        "tide-slot-reuse",
        "nccl+pack",
        "nccl-ce+pack",
        "nccl-sym+pack",
        "flat",
        "layout",
    ],
}
COLUMNS = 11


def need_fake():
    if not (FAKE / "libcuda.so.1").exists():
        pytest.skip(f"no fake driver in {FAKE}")


def perf(*words, **environment):
    need_fake()
    env = {
        **os.environ,
        "TIDE_CUDA_LIBRARY": str(FAKE / "libcuda.so.1"),
        "TIDE_NCCL_LIBRARY": str(FAKE / "libnccl.so.2"),
        "TIDE_TIMEOUT_MS": "20000",
        **environment,
    }
    for name in ("TIDE_LOCAL_SIZE", "RANK", "OMPI_COMM_WORLD_RANK"):
        env.pop(name, None)
    run = subprocess.run(
        [PERF, "--backend", "cuda", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=200,
        env=env,
    )
    if "built without kernels" in run.stderr:
        pytest.skip(run.stderr.strip())
    return run


def quick(*words, **environment):
    return perf("--iters", 2, "--warmup", 1, *words, **environment)


def rows_of(path, run):
    assert run.returncode == 0, run.stdout + run.stderr
    data = json.loads(path.read_text())
    assert data["ok"] is True
    return data["rows"]


@pytest.mark.parametrize("op", ["ag", "rs"])
@pytest.mark.parametrize("local", [1, 2, 4])
def test_all_variants(op, local, tmp_path):
    path = tmp_path / "out.json"
    words = ["--op", op, "--local", local, "--bytes", "64K,100K"]
    run = quick(*words, "--baseline", BASELINES, "--json", path)
    rows = rows_of(path, run)
    cells = [
        line.split() for line in run.stdout.splitlines() if ROW.match(line)
    ]
    expected = [(s, v) for s in (65536, 102400) for v in VARIANTS[op]]
    assert [(row["bytes"], row["variant"]) for row in rows] == expected
    assert [(int(row[0]), row[1]) for row in cells] == expected
    assert all(len(row) == COLUMNS and row[7] == "0" for row in cells)
    for row in rows:
        assert (row["ranks"], row["local"], row["wrong"]) == (4, local, 0)
        assert (row["fate"], row["why"]) == ("done", "")
        assert 0 < row["min_ms"] <= row["time_ms"] <= row["p99_ms"]
        assert row["host_us"] > 0
        assert row["sm_us"] is None
    assert "# GPU Fake" in run.stdout
    assert run.stdout.splitlines()[-1] == "# Wrong elements: 0  OK"
    assert run.stderr == ""


@pytest.mark.parametrize("op", ["ag", "rs"])
def test_buffers(op, tmp_path):
    """NCCL's baselines hold the group once more; windows hold the output."""
    path = tmp_path / "out.json"
    words = ["--op", op, "--bytes", "1M", "--baseline", BASELINES]
    rows = rows_of(path, quick(*words, "--json", path))
    mib = {row["variant"]: row["buffer_bytes"] >> 20 for row in rows}
    window = {"ag": 4, "rs": 5}[op]
    want = [4, window, window, 4, 4]
    assert [mib[name] for name in VARIANTS[op][-5:]] == want
    assert all(mib[name] for name in VARIANTS[op])


@pytest.mark.parametrize("op", ["ag", "rs"])
@pytest.mark.parametrize("group", ["llama3.1-8b", "uneven", "empty"])
def test_groups(op, group, tmp_path):
    path = tmp_path / "out.json"
    words = ["--op", op, "--group", group, "--scale", 512, "--local", 2]
    run = quick(*words, "--baseline", BASELINES, "--json", path)
    rows = rows_of(path, run)
    assert [row["variant"] for row in rows] == VARIANTS[op]
    assert all(row["wrong"] == 0 and row["fate"] == "done" for row in rows)


def test_lists(tmp_path):
    """Both ops on several groups and all baselines, on one communicator."""
    path = tmp_path / "out.json"
    words = ["--op", "ag,rs", "--group", "tiny,uneven,empty"]
    words += ["--scale", "1,64,512", "--local", 2, "--verify-runs", 3]
    run = quick(*words, "--baseline", BASELINES, "--json", path)
    rows = rows_of(path, run)
    expected = [(op, name) for op in VARIANTS for name in VARIANTS[op]]
    assert [(row["op"], row["variant"]) for row in rows] == 3 * expected
    assert all(row["wrong"] == 0 and row["fate"] == "done" for row in rows)
    groups = json.loads(path.read_text())["groups"]
    assert [(g["name"], g["parameters"], g["rows"]) for g in groups] == [
        ("tiny", 4000, len(expected)),
        ("uneven", 8, len(expected)),
        ("empty", 7, len(expected)),
    ]


def test_growing_lists(tmp_path):
    """Scratch of two collectives that grow in turn fits the arena, which has
    little to spare beside such a scratch."""
    path, file = tmp_path / "out.json", tmp_path / "wide.txt"
    file.write_text("64x294912 f64\n")
    words = ["--op", "ag,rs", "--ranks", 2, "--local", 1, "--warmup", 0]
    words += ["--group", f"{file},{file}", "--scale", "1.032,1", "--iters", 1]
    run = perf(*words, "--mode", "in-place", "--json", path)
    rows = rows_of(path, run)
    assert [row["variant"] for row in rows] == 2 * ["tide", "tide-in-place"]
    assert rows[0]["bytes"] < rows[2]["bytes"]
    assert all(row["wrong"] == 0 for row in rows)


def test_failed_row_of_tide(tmp_path):
    """There is no room for push's storages: not a matter of a baseline."""
    path = tmp_path / "out.json"
    words = ["--op", "ag", "--mode", "pull,push", "--bytes", "8M"]
    words += ["--ranks", 2, "--json", path]
    run = quick(*words, TIDE_ARENA_MIB="24")
    assert run.returncode == 1
    assert "tide-perf: tide-push: the arena of 24 MiB has no room" in run.stderr
    assert run.stdout.splitlines()[-1] == "# FAILED"
    data = json.loads(path.read_text())
    assert data["ok"] is False
    assert [row["fate"] for row in data["rows"]] == ["done", "failed"]


@pytest.mark.parametrize(
    "faults, code, part",
    [
        ({"TIDE_NCCL_LIBRARY": "/nowhere"}, 1, "libnccl.so.2 is not found"),
        ({"FAKE_FAULT": "alloc_fails", "FAKE_FAULT_RANK": "1"}, 1, "rank 1: "),
        ({"FAKE_FAULT": "no_device"}, 2, "no GPU"),
    ],
)
def test_ranks_that_cannot_open(faults, code, part):
    """All of them end at once, for the reason of the one that failed."""
    started = time.monotonic()
    run = quick("--op", "ag", "--bytes", "64K", "--baseline", "nccl", **faults)
    assert time.monotonic() - started < 15  # before the deadline
    assert run.returncode == code
    (line,) = run.stderr.splitlines()
    assert part in line
    assert run.stdout == ("# FAILED\n" if code == 1 else "")


SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct config { size_t size; unsigned magic, version; int blocking; int cga;
                int min; int max; const char *net; int share; int traffic;
                const char *name; int collnet; int policy; };
struct id { char bytes[128]; };
typedef int init(void **, int, struct id, int, struct config *);
typedef int move(const void *, void *, size_t, int, void *, void *);
typedef int sum(const void *, void *, size_t, int, int, void *, void *);

static int is(const char *what)
{
    return !strcmp(getenv("SHIM"), what);
}

/* One call of one rank, after some that went well. */
static int meets_fault(int *result)
{
    static atomic_int calls;
    int hit = !is("refuses") && atomic_fetch_add(&calls, 1) == 9;
    *result = hit && is("fails") ? 2 : 0;
    return hit;
}

int ncclCommInitRankConfig(void **comm, int ranks, struct id id, int rank,
                           struct config *config)
{
    init *real = (init *)dlsym(RTLD_NEXT, "ncclCommInitRankConfig");
    if (is("refuses") && config->policy == 2)
        return 5;
    return real(comm, ranks, id, rank, config);
}

int ncclAllGather(const void *from, void *to, size_t n, int type, void *comm,
                  void *stream)
{
    int result;
    move *real = (move *)dlsym(RTLD_NEXT, "ncclAllGather");
    return meets_fault(&result) ? result
                                : real(from, to, n, type, comm, stream);
}

int ncclReduceScatter(const void *from, void *to, size_t n, int type, int op,
                      void *comm, void *stream)
{
    int result;
    sum *real = (sum *)dlsym(RTLD_NEXT, "ncclReduceScatter");
    return meets_fault(&result) ? result
                                : real(from, to, n, type, op, comm, stream);
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """An NCCL in which a baseline goes wrong, and tide's own calls do not."""
    need_fake()
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run(
        [
            os.environ.get("CC", "cc"),
            *["-O1", "-fPIC", "-shared", "-Wl,--no-as-needed"],
            *[str(folder / "shim.c"), "-o", str(folder / "libnccl.so.2")],
            *[str(FAKE / "libnccl.so.2"), f"-Wl,-rpath,{FAKE}", "-ldl"],
        ],
        check=True,
    )
    return str(folder / "libnccl.so.2")


def by_name(rows):
    return {row["variant"]: row for row in rows}


@pytest.mark.parametrize("op", ["ag", "rs"])
def test_refused_baseline(op, shim, tmp_path):
    path = tmp_path / "out.json"
    words = ["--op", op, "--bytes", "64K", "--baseline", BASELINES]
    run = quick(*words, "--json", path, TIDE_NCCL_LIBRARY=shim, SHIM="refuses")
    rows = rows_of(path, run)
    assert [row["variant"] for row in rows] == VARIANTS[op]
    for row in rows:
        refused = row["variant"].startswith("nccl-ce")
        assert row["fate"] == ("skipped" if refused else "done")
        assert ("ncclCommInitRankConfig" in row["why"]) == refused
        assert (row["time_ms"] is None) == refused


@pytest.mark.parametrize("op", ["ag", "rs"])
@pytest.mark.parametrize("fault", ["fails", "hangs"])
def test_broken_baseline(op, fault, shim, tmp_path):
    """One rank's call fails or never takes part; its peers are freed."""
    path = tmp_path / "out.json"
    words = ["--op", op, "--bytes", "64K", "--baseline", "nccl,nccl-sym"]
    run = quick(
        *[*words, "--json", path, "--iters", 3],
        TIDE_NCCL_LIBRARY=shim,
        TIDE_TIMEOUT_MS="3000",
        SHIM=fault,
    )
    rows = by_name(rows_of(path, run))
    (broken,) = [row for row in rows.values() if row["fate"] != "done"]
    assert broken["fate"] == "failed"
    assert {"fails": ": nccl", "hangs": "not done"}[fault] in broken["why"]
    assert broken["time_ms"] is None
    assert all(row["wrong"] == 0 for row in rows.values())
    assert f"{broken['variant']} FAILED: " in re.sub(" +", " ", run.stdout)


def test_lost_signal(tmp_path):
    """A rank that waits in vain ends the run in time, and is heard."""
    path = tmp_path / "out.json"
    run = quick(
        *["--op", "ag", "--local", 2, "--bytes", "64K", "--json", path],
        *["--iters", 50],
        FAKE_FAULT="signal_lost",
        FAKE_FAULT_RANK="1",
        FAKE_FAULT_AFTER="20",
        TIDE_TIMEOUT_MS="1000",
    )
    assert run.returncode == 1
    assert "deadline" in run.stderr
    assert run.stdout.splitlines()[-1] == "# FAILED"
    data = json.loads(path.read_text())
    assert (data["ok"], data["rows"]) == (False, [])


@pytest.mark.parametrize("op", ["ag", "rs"])
def test_ranks_share_a_gpu(op):
    run = quick("--op", op, "--bytes", "64K", "--local", 2, FAKE_DEVICES="1")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "# GPU Fake 0, 1 for 4 ranks" in run.stdout


def test_modes_of_the_all_gather(tmp_path):
    path = tmp_path / "out.json"
    words = ["--op", "ag", "--bytes", "64K", "--mode", "pull,push"]
    rows = rows_of(path, quick(*words, "--json", path))
    assert [row["variant"] for row in rows] == ["tide", "tide-push"]
    assert [row["fate"] for row in rows] == ["done", "done"]
    words += ["--verify-runs", 2, "--sm-time"]
    run = quick(*words, "--json", path, FAKE_MULTICAST="0")
    pull, push = rows_of(path, run)
    assert (pull["fate"], push["fate"]) == ("done", "skipped")
    assert push["time_ms"] is None
    assert "no multicast" in push["why"]
    assert "skipped: no multicast" in run.stdout


@pytest.mark.parametrize("op", ["ag", "rs"])
def test_passes_beside_the_timed_one(op, tmp_path):
    path = tmp_path / "out.json"
    words = ["--op", op, "--bytes", "64K", "--pipelined", 3, "--sm-time"]
    run = quick(*words, "--verify-runs", 3, "--json", path)
    rows = rows_of(path, run)
    assert all(row["sm_us"] >= 0 for row in rows)
    assert json.loads(path.read_text())["verify_runs"] == 3
    assert "iterations 2 of 3 calls" in run.stdout


@pytest.mark.parametrize("local", [2, 4])
def test_soak(local, tmp_path):
    path = tmp_path / "out.json"
    run = perf("--soak", 24, "--local", local, "--json", path)
    (row,) = rows_of(path, run)
    assert (row["op"], row["variant"], row["wrong"]) == ("ag+rs", "soak", 0)


@pytest.mark.parametrize(
    "words, part",
    [
        (["--op", "ag", "--baseline", "ring"], 'no "ring"'),
        (["--op", "ag", "--mode", "in-place"], 'no "in-place"'),
        (["--op", "rs", "--mode", "push"], 'no "push"'),
    ],
)
def test_usage(words, part):
    run = perf(*words)
    assert run.returncode == 2
    assert part in run.stderr
    assert run.stdout == ""
