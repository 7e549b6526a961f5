"""Pages that are true: the console blocks of a Markdown page, run for real and compared with what the page shows.

What a page may use:

    ```console      `$ command`, then what it prints, as a terminal shows it (both streams); `> ` continues a command
    ```yaml         with a first line `# name.yaml`: the file of that name in the folder where the commands run
    make up         runs beside the rest from then on, as do `aliquot up` and `aliquot serve`; where no cluster is named
                    on the demo cluster, so that a machine with GPUs shows the same
    ^C              as the last line: the command goes on while the next block runs, and is then interrupted
    logs -f ... ^C  the same, interrupted at once when as much was printed as the page shows
    you@pod:/x#     a prompt: the command has a terminal, and what stands after the prompt is typed there
    /home/you       the reader's home folder
    127.0.0.1:7520  the server, wherever the test put it

A command that only looks (LOOKS) is repeated for a while until it shows what the page shows: jobs take a moment to
start. A command must fail exactly when the page shows an error (FAILURE). What differs from run to run is replaced
on both sides before they are compared: see VARYING.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 120  # for one command on a busy machine; usually it takes one
PATIENCE = 60  # seconds until what a page shows must have come about
INTERRUPT = "^C"
LOOKS = re.compile(r"(runai|aliquot) (list|get|describe|logs|status|top|project list)\b|kubectl get\b")

# How our programs and kubectl begin to say what went wrong.
FAILURE = re.compile(r'error: |The \w+ "\S+" is invalid:')
# What a shell in a pod asks with: root@build1-0-0:/workload# as root, and with another name and sign otherwise.
PROMPT = re.compile(r"^[\w.-]+@[\w-]+:\S*[#$] ?", re.M)
# What a server says in no particular order while it starts, and what only some machines say: that they have no GPU.
UNORDERED, SOMETIMES = re.compile(r"\] (node registered|leading|webhook serves) "), "no GPU of NVIDIA here"
# (what, by what), in this order: all that two runs of the same page may differ in.
VARYING = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<uid>"),
        (r"\balq_[\w-]+", "<token>"),
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| [A-Z]{2,5}\b| [+-]\d\d\b)?", "<time>"),
        (r"\d+(us|ms|s)/step", "<pace>"),
        (r"(?<=loss: )\d+\.\d+|(?<=accuracy: )\d\.\d+|(?<=Wait seconds: )\d+\.\d+", "<figure>"),
        # With the spaces that fill its column: 9s and 10s are to look the same.
        (r"(?<![\w.-])\d+(s|m|h|d)\b(?!-)( {2,})?", "<age>"),
        (r"^[\w.-]+@([\w-]+:\S*)[#$]", r"<user>@\1#"),
        (r"(?<=127\.0\.0\.1:)\d+", "<port>"),
        (r"(?<=identity=)\S+", "<process>"),
        (r"(?<=Isolation: ).+|(?<=\"isolation\": \")[^\"]+", "<depends on the machine>"),
        (r"(?<=pid )\d+|(?<=Process:   )\d+", "<pid>"),
        (r"(?<=resourceVersion\":\")\d+|(?<=resourceVersion\": \")\d+", "<version>"),
        (r"(?<=Version:   )\d[\w.]*|(?<=\"version\": \")\d[\w.]*|(?<=aliquot )\d+\.\d+[\w.]*", "<release>"),
    )
)


@dataclass(frozen=True)
class Step:
    """One command of a page and what it is said to print."""

    command: str
    output: list[str]
    line: int

    @property
    def serves(self) -> bool:
        return re.match(r"(make up|aliquot up|aliquot serve)\b", self.command) is not None and not self.fails

    @property
    def interrupted(self) -> bool:
        return self.output[-1:] == [INTERRUPT]

    @property
    def follows(self) -> bool:
        return self.interrupted and re.match(r"(runai|aliquot) logs\b", self.command) is not None

    @property
    def typed(self) -> list[str]:
        """What is typed at the prompts that the page shows."""
        return [line[found.end() :] for line in self.output if (found := PROMPT.match(line))]

    @property
    def fails(self) -> bool:
        return any(FAILURE.match(line) for line in self.output)


@dataclass
class Page:
    path: Path
    blocks: list[list[Step]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


def read(path: Path) -> Page:
    page, fence, driver, start = Page(path), "", [], 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.startswith("```"):
            driver.append(line)
        elif fence:
            _close(page, fence, driver, start)
            fence = ""
        else:
            fence, driver, start = line[3:].strip() or "text", [], number
    return page


def _close(page: Page, fence: str, driver: list[str], start: int) -> None:
    if fence == "console":
        page.blocks.append(_steps(driver, start))
    elif fence in ("yaml", "csv") and driver and (name := re.fullmatch(rf"# (\S+\.{fence})", driver[0])):
        page.files[name[1]] = "\n".join(driver) + "\n"


def _steps(driver: list[str], start: int) -> list[Step]:
    steps: list[Step] = []
    for number, line in enumerate(driver, start + 1):
        if line.startswith("$ "):
            steps.append(Step(line[2:], [], number))
        elif line.startswith("> ") and not steps[-1].output:
            steps[-1] = Step(f"{steps[-1].command}\n{line[2:]}", [], steps[-1].line)
        else:
            steps[-1].output.append(line.rstrip())
    return steps


class Background:
    """A command that runs beside the others; its output is read as it comes."""

    def __init__(self, step: Step, command: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.step = step
        self.lines: list[str] = []
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            # `exec`, so that the signal reaches the command and not only its shell.
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for_lines(self, count: int) -> None:
        """Until it has printed so many lines, or has ended."""
        with self._news:
            self._news.wait_for(lambda: len(self.lines) >= count or self.process.poll() is not None, SECONDS)

    def end(self, how: signal.Signals) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        status = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


class Terminal:
    """A command with a terminal of its own, and somebody who waits for each prompt before typing."""

    def __init__(self, command: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env={**environment, "TERM": "dumb"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._seen = b""

    def converse(self, typed: list[str]) -> list[str]:
        """What is on the screen at the end."""
        try:
            for place, words in enumerate(typed, 1):
                self._read(lambda place=place: len(PROMPT.findall(self.screen)) >= place)  # type: ignore[misc]
                os.write(self._master, words.encode() + b"\r")
            self._read(lambda: False)
            status = self._process.wait(SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._master)
        lines = [line.rstrip() for line in self.screen.splitlines()]
        return lines if status == 0 else [*lines, f"(exit status {status})"]

    @property
    def screen(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", self._seen.decode())

    def _read(self, enough: Callable[[], bool]) -> None:
        """Until it is enough, or nobody has the other end of the terminal any more."""
        deadline = time.monotonic() + SECONDS
        while not enough():
            left = deadline - time.monotonic()
            came = select.select([self._master], [], [], max(0, left))[0]
            assert came, f"nothing more came: {self.screen}"
            try:
                data = os.read(self._master, 4096)
            except OSError:  # what Linux says when the last program has closed it
                return
            if not data:
                return
            self._seen += data


class Tour:
    """Runs a page in a home folder of its own and gives back what really happened."""

    def __init__(self, page: Page, home: Path, first_on_path: Path | None = None) -> None:
        self.page = page
        self.home = home
        self.folder = home / "tour"
        self.folder.mkdir(parents=True)
        for name, text in page.files.items():
            (self.folder / name).write_text(text)
        folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
        if first_on_path is not None:
            folders.insert(0, str(first_on_path))
        # Only what is named here: a setting of whoever runs the tests must not change what the page shows.
        self._environment = {
            "PATH": os.pathsep.join(folders),
            "HOME": str(home),
            "LOGNAME": "you",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "COLUMNS": "100",
        }
        self._server: Background | None = None
        self._open: Background | None = None
        self._url = ""

    def run(self) -> list[tuple[str, list[str]]]:
        """Every command with what it printed, in the form that `expected` has."""
        seen: list[tuple[str, list[str]]] = []
        try:
            for block in self.page.blocks:
                waiting = self._open
                seen += [(step.command, self._normal(self._do(step))) for step in block]
                if waiting is not None:
                    place = [command for command, _ in seen].index(waiting.step.command)
                    seen[place] = (waiting.step.command, self._normal(self._interrupt(waiting)))
        finally:
            if self._open is not None:
                self._open.end(signal.SIGTERM)
            if self._server is not None:
                if self._server.process.poll() is None:
                    # With its jobs: a page that broke off half way leaves nothing behind.
                    subprocess.run(["aliquot", "down"], env=self._environment, capture_output=True, check=True)
                self._server.end(signal.SIGTERM)
        return seen

    def expected(self) -> list[tuple[str, list[str]]]:
        steps = [step for block in self.page.blocks for step in block]
        return [(step.command, self._normal(_in_order(step.output) if step.serves else step.output)) for step in steps]

    def _do(self, step: Step) -> list[str]:
        if step.serves:
            return self._serve(step)
        command = step.command.replace("http://127.0.0.1:7520", self._url or "http://127.0.0.1:7520")
        if step.typed:
            return Terminal(command, self.folder, self._environment).converse(step.typed)
        if step.follows:
            return self._follow(Background(step, command, self.folder, self._environment))
        if step.interrupted:
            self._open = Background(step, command, self.folder, self._environment)
            # What is there is printed first; whatever changes after that is news to the watch.
            self._open.wait_for_lines(1)
            return []
        deadline = time.monotonic() + PATIENCE
        lines = self._run(step, command)
        while LOOKS.match(command) and self._normal(lines) != self._normal(step.output) and time.monotonic() < deadline:
            time.sleep(0.2)
            lines = self._run(step, command)
        return lines

    def _run(self, step: Step, command: str) -> list[str]:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        lines = [line.rstrip() for line in done.stdout.splitlines()]
        if (done.returncode != 0) != step.fails:
            lines.append(f"(exit status {done.returncode})")
        return lines

    def _serve(self, step: Step) -> list[str]:
        # `make up` is `aliquot up` (test_docs_links checks that); any port will do here.
        command = step.command.replace("make up", "aliquot up")
        if "--simulate" not in command and "--kubeconfig" not in command:
            command += " --simulate demo"
        if self._server is not None:
            self._server.end(signal.SIGTERM)  # has ended; the page starts it again
        self._server = Background(step, f"{command} --port 0", self.folder, self._environment)
        self._server.wait_for_lines(len(_in_order(step.output)))
        lines = _in_order(self._server.lines)
        url = re.search(r"\] serving .*url=(\S+)", "\n".join(lines))
        assert url, f"{step.command}: {lines}"
        self._url = url[1]
        return lines

    def _follow(self, following: Background) -> list[str]:
        count = len(following.step.output) - 1
        following.wait_for_lines(count)
        status = following.end(signal.SIGINT)
        return [*following.lines[:count], INTERRUPT if status == 130 else f"(exit status {status})"]

    def _interrupt(self, waiting: Background) -> list[str]:
        waiting.wait_for_lines(len(waiting.step.output) - 1)
        status = waiting.end(signal.SIGINT)
        self._open = None
        # The command ends the line that a terminal has begun with ^C.
        lines = waiting.lines[:-1] if waiting.lines[-1:] == [""] else waiting.lines
        return [*lines, INTERRUPT if status == 130 else f"(exit status {status})"]

    def _normal(self, lines: list[str]) -> list[str]:
        text = "\n".join(normal(line.replace(str(self.home), "/home/you")) for line in lines)
        return text.rstrip().splitlines()


def _in_order(lines: list[str]) -> list[str]:
    """What a server says while it starts, comparable."""
    said = [line for line in lines if SOMETIMES not in line]
    return sorted(said, key=lambda line: (True, normal(line)) if UNORDERED.search(line) else (False, ""))


def normal(line: str) -> str:
    for pattern, name in VARYING:
        line = pattern.sub(name, line)
    return line
