"""Runs processes that allocate and free GPU memory on command: one command per line on stdin, one answer per line.

  0 take alloc 4096 7   process 0 allocates 4096 bytes with the allocator `alloc` and names them 7
  0 free 7              frees them
  0 context             creates another context
  0 end                 destroys the newest context with everything in it
  0 fault between:1     dies when it next passes that fault point of the library
  0 kill                is killed
  0 exit                exits
  - query               starts a program that only reads, like nvidia-smi

A process is started by its first command. An answer is the pid and the driver's error code, or `dead`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from cu import Cuda, CudaError, Nvml, c, print_line, ptr


class Worker:
    def __init__(self) -> None:
        self.cuda: Cuda | None = None
        self.held: dict[str, Callable[[], None]] = {}
        self.contexts: list[ptr] = []
        self.context_of: dict[str, int] = {}  # by allocation: the number of its context

    def driver(self) -> Cuda:
        if self.cuda is None:
            self.cuda = Cuda()
        return self.cuda

    def take(self, allocator: str, size: str, name: str) -> None:
        self.held[name] = self.driver().allocators()[allocator](int(size))
        if allocator in ("alloc", "pitch", "managed", "array", "array3d", "mipmap"):
            self.context_of[name] = len(self.contexts)

    def free(self, name: str) -> None:
        self.held.pop(name)()
        self.context_of.pop(name, None)

    def context(self) -> None:
        made = ptr()
        self.driver().call("cuCtxCreate_v2", c.byref(made), 0, 0)
        self.contexts.append(made)

    def end(self) -> None:
        cuda = self.driver()
        depth = len(self.contexts)
        cuda.call("cuCtxDestroy_v2", self.contexts.pop())
        cuda.call("cuCtxSetCurrent", self.contexts[-1] if self.contexts else cuda.context)
        for name in [n for n, d in self.context_of.items() if d == depth]:
            self.held.pop(name)
            self.context_of.pop(name)

    def fault(self, point: str) -> None:
        os.environ["GPUSHARE_FAULT"] = point

    def run(self, words: list[str]) -> int:
        code = 0
        try:
            getattr(self, words[0])(*words[1:])
        except CudaError as e:
            code = e.code
        if self.cuda and words[0] != "fault":
            self.cuda.info()  # pools shrink at synchronization; the library notices at the next query
        return code


def work(commands: int, answers: int) -> None:
    worker = Worker()
    with os.fdopen(commands) as lines:
        for line in lines:
            if line.strip() == "exit":
                os._exit(0)
            os.write(answers, f"{worker.run(line.split())}\n".encode())
    os._exit(0)


def query() -> None:
    nvml = Nvml()
    nvml.memory(nvml.device(Cuda(context=False).uuid()))


class Child:
    def __init__(self) -> None:
        commands, self.write = os.pipe()
        self.read, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.write)
            os.close(self.read)
            work(commands, answers)
        os.close(commands)
        os.close(answers)

    def send(self, words: str) -> str:
        if words == "kill":
            os.kill(self.pid, signal.SIGKILL)
        else:
            os.write(self.write, words.encode() + b"\n")
        answer = b"" if words in ("kill", "exit") else os.read(self.read, 100)
        if answer:
            return answer.decode().strip()
        os.waitpid(self.pid, 0)
        os.close(self.write)
        os.close(self.read)
        return "dead"


def main() -> None:
    children: dict[str, Child] = {}
    for line in sys.stdin:
        who, _, words = line.strip().partition(" ")
        if words == "query":
            child = os.fork()
            if child == 0:
                query()
                os._exit(0)
            print_line("- " + str(os.waitpid(child, 0)[1]))
            continue
        if who not in children:
            children[who] = Child()
        process = children[who]
        answer = process.send(words)
        if answer == "dead":
            del children[who]
        print_line(process.pid, answer)


main()
