"""Published trace formats and our own: read correctly, or refused with file, line, column and condition."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from aliquot.errors import Invalid
from aliquot.planner.model import Request
from aliquot.sim.traces import FORMATS, Trace, TraceJob, load_quotas, load_trace, read_file
from aliquot.sim.traces.csv_rows import TraceFile

DATA = Path(__file__).parents[3] / "data"


def text(content: str) -> TraceFile:
    return TraceFile.of("t.csv", content)


def csv(content: str, trace_format: str | None = None) -> Trace:
    return load_trace(text(content), trace_format)


def fault(content: str, trace_format: str | None = None) -> str:
    with pytest.raises(Invalid) as caught:
        load_trace(text(content), trace_format)
    return str(caught.value)


@pytest.mark.parametrize(
    "path, trace_format, jobs, gpus, projects, hours",
    [
        ("muri/trace3.csv.gz", "muri", 992, 64, 1, 118_440),
        ("muri/trace3_pr.csv.gz", "muri", 992, 64, 1, 118_440),
        ("philly/philly_jobs.csv.gz", "philly", 82247, 2816, 15, 978_078),
        ("shockwave/120_0.2_5_100_40_25.trace.gz", "shockwave", 120, 32, 1, 198),
    ],
)
def test_published_traces(path: str, trace_format: str, jobs: int, gpus: int, projects: int, hours: int) -> None:
    """Each is known by its content, with its cluster and all its work; jobs are in the order of their submission, the
    first at 0."""
    trace = load_trace(read_file(str(DATA / path)))
    assert (trace.format, len(trace.jobs), trace.nodes * trace.gpus_per_node) == (trace_format, jobs, gpus)
    assert len(trace.projects) == projects
    assert trace.jobs[0].submit == 0
    assert all(earlier.submit <= later.submit for earlier, later in zip(trace.jobs, trace.jobs[1:], strict=False))
    assert sum(trace.quotas.values()) == gpus
    assert round(sum((job.duration or 0) * job.gpus for job in trace.jobs) / 3600) == hours


def test_openb() -> None:
    """Pods arrive one by one in the order of a seed, stay, and may use the GPU models they name."""
    text = read_file(str(DATA / "openb/openb_pod_list_gpuspec33.csv.gz"))
    first, again, other = (load_trace(text, limit=50, seed=seed) for seed in (42, 42, 43))
    assert (first.format, len(first.custom_nodes), first.gpus) == ("openb", 1213, 6212)
    assert first.jobs == again.jobs != other.jobs
    assert all(job.duration is None and not job.may_wait for job in first.jobs)
    assert any(job.node_types for job in first.jobs)


def test_muri_duration() -> None:
    """The duration is iterations times iteration time, plus 1.5 %."""
    trace = csv("job_id,num_gpu,submit_time,iterations,iteration_time\n7,2,5000,1000,200\n")
    duration: Any = pytest.approx(203)
    assert trace.jobs == (TraceJob("job-7", 0, duration, 2000),)


def test_own_format() -> None:
    """Three columns are required; a missing or empty optional value has a default."""
    trace = csv("submit,duration,gpus,project,type\n10,60,0.5,,\n0,30,2,vision,interactive\n")
    assert trace.jobs == (
        TraceJob("job-1", 0, 30, 2000, "vision", priority=100, preemptible=False),
        TraceJob("job-0", 10, 60, 500, "default"),
    )


def test_comments() -> None:
    """Lines that begin with # are comments, and count as lines."""
    content = "# ours\nsubmit,duration,gpus\n# first week\n0,1,1\n"
    assert len(csv(content).jobs) == 1
    assert "line 5, column gpus: 'x' is not a number" in fault(content + "0,1,x\n")


def test_times_of_day() -> None:
    """A submission may be a time; without a zone it is UTC."""
    trace = csv("submit,duration,gpus\n2026-01-31 13:00:00,60,1\n2026-01-31T14:00:30+01:00,60,1\n")
    assert [job.submit for job in trace.jobs] == [0, 30]


def test_limit() -> None:
    """`limit` keeps the first jobs by submission, not by line."""
    trace = load_trace(text("submit,duration,gpus,name\n9,1,1,c\n0,1,1,a\n5,1,1,b\n"), limit=2)
    assert [job.name for job in trace.jobs] == ["a", "b"]


@pytest.mark.parametrize(
    "content, message_part",
    [
        ("submit,duration,gpus\n0,x,1\n", "t.csv: line 2, column duration: 'x' is not a number"),
        ("submit,duration,gpus\n0,1,1\n\n0,-1,1\n", "line 4, column duration: -1 must be a number of at least 0"),
        ("submit,duration,gpus\n0,nan,1\n", "t.csv: line 2, column duration: nan must be a number of at least 0"),
        ("submit,duration,gpus\n0,,1\n", "t.csv: line 2, column duration: is empty; every job needs it"),
        ("submit,duration,gpus\n0,1\n", "t.csv: line 2: has 2 columns and must have 3"),
        ("submit,duration,gpus\nsoon,1,1\n", "line 2, column submit: 'soon' is neither seconds nor a time"),
        ("submit,duration,gpus\n0,1,1.5\n", "line 2, column gpus: must be a whole number, or a part of one GPU"),
        ("submit,duration,gpus\n0,1,0.0005\n", "line 2, column gpus: has more than three decimals"),
        ("submit,duration,gpus,tasks\n0,1,4,3\n", "line 2, column tasks: must divide gpus into equal whole numbers"),
        ("submit,duration,gpus,type\n0,1,4,x\n", "line 2, column type: 'x' must be one of training, interactive"),
        ("submit,duration,gpus,name\n0,1,4,x\n0,1,4,x\n", "line 3, column name: 'x' appears twice"),
        ("submit,duration,gpus,colour\n0,1,4,x\n", "line 1: column colour is not one we know"),
        ("submit,duration,gpus,gpus\n0,1,4,4\n", "line 1: column gpus appears twice"),
        ("submit,duration,gpus\n", "t.csv: holds no jobs"),
        ("a,b\n1,2\n", "line 1: not a trace that we know; give --format"),
        ("", "line 1: not a trace that we know"),
    ],
)  # fmt: skip
def test_faults(content: str, message_part: str) -> None:
    """A fault is one line: file, line, column and condition."""
    message = fault(content)
    assert message_part in message
    assert "\n" not in message


def test_format_that_does_not_fit() -> None:
    """With --format the columns of that format are required."""
    assert "line 1: column num_gpus is missing" in fault("timestamp,duration,cluster\n0,1,x\n", "philly")


@pytest.mark.parametrize("trace_format", sorted(FORMATS))
def test_no_file_is_a_traceback(trace_format: str) -> None:
    """Any file is read or refused with `Invalid`."""
    for content in ("", "\n\n", '"', "x\ty\n" * 3, "submit,duration,gpus\n" + "9" * 400 + ",1,1\n", "\x00,\x00\n"):
        with pytest.raises(Invalid):
            load_trace(text(content), trace_format)


def test_damaged_files(tmp_path: Path) -> None:
    """A missing, truncated or binary file gives one line."""
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(b"submit,duration,gpus\n0,1,1\n" * 50)[:-20])
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"submit\xff\xfe")
    for path, message_part in (
        (cut, "a damaged gzip file"),
        (binary, "not UTF-8 text (byte 6)"),
        (tmp_path / "no", "No such"),
    ):
        with pytest.raises(Invalid, match=message_part.replace("(", r"\(").replace(")", r"\)")):
            read_file(str(path))


def test_quota_files() -> None:
    """Quotas by project in GPUs, or by virtual cluster in nodes."""
    assert load_quotas(text("project,gpus\na,4\nb,0\n"), 8) == {"a": 4, "b": 0}
    assert load_quotas(text("vc,node num\na,2\n"), 8) == {"a": 16}
    with pytest.raises(Invalid, match=r"line 2, column gpus: 1\.5 must be a whole number"):
        load_quotas(text("project,gpus\na,1.5\n"), 8)


def test_tasks_of_a_job() -> None:
    """A job takes full nodes and one with the rest, unless the trace has a number of tasks."""
    sizes = [
        [request.devices for request in TraceJob("x", 0, 1, 20_000, tasks=tasks).requests(8)] for tasks in (None, 5)
    ]
    assert sizes == [[8, 8, 4], [4, 4, 4, 4, 4]]
    assert TraceJob("x", 0, 1, 250).requests(8) == [Request(1, 250)]
    assert TraceJob("x", 0, 1, 0, cpu=1).requests(8) == [Request(0, 0, cpu=1)]
