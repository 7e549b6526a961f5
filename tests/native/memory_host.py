"""Processes that take and free GPU memory as they are told: one order per line, `who what ...`, one answer each.

  0 take alloc 4096 7   takes so many bytes in that way and remembers them as 7; answers the driver's code
  0 free 7              0 context / 0 end      another context, and its end with all that is in it
  0 fault between:1     dies the next time it passes that place in the library
  0 kill                0 exit                 - look: a program that only reads, as nvidia-smi does

A process begins with its first order. Before each answer stands its pid; `dead` is the answer of one that died.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from cu import Cuda, CudaError, Nvml, c, ptr, say


class Worker:
    def __init__(self) -> None:
        self.cuda: Cuda | None = None
        self.held: dict[str, Callable[[], None]] = {}
        self.contexts: list[ptr] = []
        self.within: dict[str, int] = {}  # what is in which context, for its end

    def begun(self) -> Cuda:
        if self.cuda is None:
            self.cuda = Cuda()
        return self.cuda

    def take(self, way: str, size: str, name: str) -> None:
        self.held[name] = self.begun().ways()[way](int(size))
        if way in ("alloc", "pitch", "managed", "array", "array3d", "mipmap"):
            self.within[name] = len(self.contexts)

    def free(self, name: str) -> None:
        self.held.pop(name)()
        self.within.pop(name, None)

    def context(self) -> None:
        made = ptr()
        self.begun().call("cuCtxCreate_v2", c.byref(made), 0, 0)
        self.contexts.append(made)

    def end(self) -> None:
        cuda = self.begun()
        depth = len(self.contexts)
        cuda.call("cuCtxDestroy_v2", self.contexts.pop())
        cuda.call("cuCtxSetCurrent", self.contexts[-1] if self.contexts else cuda.context)
        for name in [n for n, d in self.within.items() if d == depth]:
            self.held.pop(name)
            self.within.pop(name)

    def fault(self, place: str) -> None:
        os.environ["GPUSHARE_FAULT"] = place

    def obey(self, words: list[str]) -> int:
        code = 0
        try:
            getattr(self, words[0])(*words[1:])
        except CudaError as e:
            code = e.code
        if self.cuda and words[0] != "fault":
            self.cuda.info()  # a pool shrinks at a synchronisation, which the library learns at the next query
        return code


def work(orders: int, answers: int) -> None:
    worker = Worker()
    with os.fdopen(orders) as lines:
        for line in lines:
            if line.strip() == "exit":
                os._exit(0)
            os.write(answers, f"{worker.obey(line.split())}\n".encode())
    os._exit(0)


def look() -> None:
    nvml = Nvml()
    nvml.memory(nvml.device(Cuda(context=False).uuid()))


class Child:
    def __init__(self) -> None:
        orders, self.write = os.pipe()
        self.read, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.write)
            os.close(self.read)
            work(orders, answers)
        os.close(orders)
        os.close(answers)

    def order(self, words: str) -> str:
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
        if words == "look":
            child = os.fork()
            if child == 0:
                look()
                os._exit(0)
            say("- " + str(os.waitpid(child, 0)[1]))
            continue
        child_of = children.setdefault(who, Child()) if who not in children else children[who]
        answer = child_of.order(words)
        if answer == "dead":
            del children[who]
        say(child_of.pid, answer)


main()
