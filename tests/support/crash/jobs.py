"""People who submit, list, follow and delete jobs while the platform is killed, and remember what they were told.

Each alone knows all of its jobs: an answer settles a request, and a request without one is settled by looking. Every
job counts aloud from 0, so its log shows each gap, each repetition and each second start.

A job may be stopped for another one: then its history says so, it waits, and its next pod counts from 0 again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from aliquot.api import KINDS, Pod, decode, shares_of
from aliquot.api import Workload as WorkloadObject
from aliquot.client import connect
from aliquot.client.connection import Connection
from aliquot.errors import Conflict, NotFound, Unavailable
from aliquot.store.driver import Document, StoreDriver
from aliquot.store.typed_store import Store
from aliquot.streams import LogOptions
from aliquot.units import GPU
from support.crash.clients import SECONDS, patiently
from support.stores.namespace import document

WORKLOAD = KINDS.named("Workload")
PROJECTS = ("team-a", "team-b", "team-c", "team-d")
GPUS = (0, 0.25, 0.5, 1, 2, 2)  # more than there are, in all, so that some must give back; one job each always fits
Form = Literal["stays", "ends", "fails"]
# Ten lines at once, then a pause: bytes in one read and many, without a fork for every line.
COUNT = "i=0; while [ $i -lt %d ]; do echo $i; i=$((i+1)); [ $((i %% 10)) -ne 0 ] || sleep 0.3; done; exit %d"
_LINES = {"stays": 1 << 40, "ends": 40, "fails": 15}
_FINAL = ("Completed", "Failed")


def counted(lines: int) -> str:
    return "".join(f"{number}\n" for number in range(lines))


@dataclass(eq=False)
class Job:
    name: str
    project: str
    form: Form
    spec: dict[str, Any]
    fresh: bool = True  # nobody had its name before, so a pod of its name is its own
    uid: str = ""
    deleting: bool = False  # asked for; from then on it may go at any moment
    final: str = ""  # its last phase, once somebody saw it
    stops: int = 0  # how often it was stopped for others

    @property
    def namespace(self) -> str:
        return f"runai-{self.project}"

    @property
    def pod(self) -> str:
        return f"{self.name}-0-0"

    @property
    def attempts(self) -> int:
        """How many pods it takes until it has failed for good."""
        return int(self.spec["backoffLimit"]) + 1

    def saw(self, found: Document) -> None:
        assert found.uid == self.uid, f"{self.name} is another one now"
        status = found.data.get("status", {})
        phase, stops = status.get("phase", ""), status.get("interruptionCount", 0)
        assert stops >= self.stops, f"{self.name} has lost a part of its history"
        self.stops = stops
        assert not self.final or phase == self.final, f"{self.name} was {self.final} and is {phase}"
        self.final = phase if phase in _FINAL else ""


@dataclass
class LogFollower:
    """Reads a job's log from its beginning, going on from the last byte wherever the stream breaks."""

    connection: Callable[[], Connection]
    job: Job
    current: Callable[[], Awaitable[str]]  # the uid of its pod; `NotFound` when it has none
    stops: Callable[[], Awaitable[set[str]]]  # uids of pods that were stopped for others
    data: bytes = b""
    resumed: int = 0
    ended: bool = False
    _pod: str = ""  # whose log it is
    _reading: bool = False

    async def run(self) -> None:
        while not self.ended:
            try:
                await self._read()
            except Unavailable:
                self.resumed += self._reading
            except (NotFound, Conflict):  # not started yet, or gone
                if self.job.deleting:
                    return
            await asyncio.sleep(0.05)

    async def _read(self) -> None:
        self._reading = False
        pod = await self.current()
        if pod != self._pod:
            await self._begin(pod)
        options = LogOptions(follow=True, offset=len(self.data), pod_uid=pod)
        here = connect(self.connection(), retry_s=0)
        async with here as server, server.logs(self.job.namespace, self.job.pod, options) as log:
            assert log.offset == len(self.data), f"{self.job.name}: at {log.offset}, not {len(self.data)}"
            self._reading = True
            async for piece in log.chunks:
                self.data += piece
        # The server says that this was all. Of a job that counts for ever it may say so only once it is deleted, or
        # stopped for another; of one that was stopped there will be more.
        if not self.job.deleting and not self._is_whole and pod in await self.stops():
            return
        assert self.job.form != "stays" or self.job.deleting, f"the log of {self.job.name} ended"
        self.ended = True

    @property
    def _is_whole(self) -> bool:
        return self.data.count(b"\n") == _LINES[self.job.form]

    async def _begin(self, pod: str) -> None:
        """The next pod is followed from its beginning; the last one must have been stopped for another."""
        if self.data:  # a pod that a node refused has no log
            self.check()
            stopped = await self.stops()
            assert self.job.deleting or self._pod in stopped, f"{self.job.name} was started again without a reason"
        self._pod, self.data = pod, b""

    def check(self) -> int:
        """How many lines there were, each once and in order; all of them where the job came to its end."""
        text = self.data.decode()
        lines = text.count("\n")
        assert counted(lines + 1).startswith(text), f"{self.job.name}: {text[:500]!r}"
        if self.ended and not self.job.deleting:
            assert lines == _LINES[self.job.form], f"{self.job.name} printed {lines} lines"
        return lines


class Person:
    def __init__(
        self,
        driver: StoreDriver,
        connection: Callable[[], Connection],
        name: str,
        projects: Sequence[str] = PROJECTS,
        roomy: str = "team-d",
    ) -> None:
        """`roomy`: the project whose quota has room for all that cannot be preempted."""
        self._driver, self._connection = driver, connection
        self._projects, self._roomy = projects, roomy
        self._random = random.Random(name)
        self._number = 0
        self._free_names: list[str] = []  # of deleted jobs; to be given again
        self.name = name
        self.jobs: dict[str, Job] = {}
        self.followers: list[LogFollower] = []
        self._following: list[asyncio.Task[None]] = []
        self.done: Counter[str] = Counter()

    async def step(self) -> None:
        """One request, settled when it returns."""
        choice = self._random.random()
        if len(self.jobs) < 4 and choice < 0.5:
            await self._submit()
        elif self.jobs and choice > (0.85 if len(self.jobs) < 4 else 0.6):
            await self.delete(self._random.choice(list(self.jobs.values())))
        else:
            await self.list_jobs()
        for task in self._following:
            if task.done():
                task.result()  # a follower that failed ends everything

    async def _submit(self) -> None:
        job = self._new()
        made = document(WORKLOAD, job.name, job.namespace, job.spec)
        try:
            job.uid = (await self._driver.create(WORKLOAD, made)).uid
            self.done["submitted"] += 1
        except Conflict:
            # The name is free when its workload is gone; this one was ours to delete, and we saw it go.
            raise AssertionError(f"{job.name} was deleted and is there") from None
        except Unavailable:
            self.done["broken off"] += 1
            found = await self._look(job)
            if found is None:
                return
            job.uid = found.uid
        self.jobs[job.name] = job
        if job.fresh and job.attempts == 1 and self._random.random() < 0.5:
            self._follow(job)

    def _new(self) -> Job:
        form: Form = self._random.choices(("stays", "ends", "fails"), (5, 3, 2))[0]
        interactive = form == "stays" and self._random.random() < 0.3
        # What cannot be preempted stays within quota.
        project = self._roomy if interactive else self._random.choice(self._projects)
        gpu = self._random.choice(GPUS[1:4] if interactive else GPUS)
        spec = {
            "type": "interactive" if interactive else "training",
            "image": "ubuntu",
            "command": ["sh", "-c", COUNT % (_LINES[form], 3 if form == "fails" else 0)],
            "backoffLimit": self._random.choice((0, 1)) if form == "fails" else 0,
            **({"compute": {"gpu": gpu}} if gpu else {}),
        }
        if self._free_names and self._random.random() < 0.5:
            name, project = self._free_names.pop().split("/")
            return Job(name, project, form, {**spec, "type": "training"}, fresh=False)
        self._number += 1
        return Job(f"{self.name}-{self._number}", project, form, spec)

    def _follow(self, job: Job) -> None:
        follower = LogFollower(self._connection, job, lambda: self._pod(job), lambda: self._stops(job))
        self.followers.append(follower)
        self._following.append(asyncio.create_task(follower.run()))

    async def delete(self, job: Job) -> None:
        job.deleting = True
        while True:
            try:
                await self._driver.delete(WORKLOAD, job.name, job.namespace, uid=job.uid)
                self.done["deleted"] += 1
                break
            except NotFound:
                break  # an earlier try that nobody answered
            except Unavailable:
                self.done["broken off"] += 1
                found = await self._look(job)
                if found is None:
                    break
                assert found.uid == job.uid, f"{job.name} is another one now"
        del self.jobs[job.name]
        if all(follower.job is not job for follower in self.followers):
            self._free_names.append(f"{job.name}/{job.project}")

    async def _look(self, job: Job) -> Document | None:
        try:
            return await patiently(lambda: self._driver.get(WORKLOAD, job.name, job.namespace))
        except NotFound:
            return None

    async def _pod(self, job: Job) -> str:
        return (await self._driver.get(KINDS.of(Pod), job.pod, job.namespace)).uid

    async def _stops(self, job: Job) -> set[str]:
        found = await self._look(job)
        return set() if found is None else {one.pod for one in decode(WorkloadObject, found.data).status.interruptions}

    async def starts(self) -> dict[tuple[str, str], int]:
        """How many pods each of its jobs can have had: one, and another for each that failed or was stopped."""
        most = {}
        for job in self.jobs.values():
            if job.fresh:
                status = decode(WorkloadObject, (await self._driver.get(WORKLOAD, job.name, job.namespace)).data).status
                assert len(status.interruptions) == status.interruption_count, job.name
                most[job.project, job.name] = 1 + status.interruption_count + job.attempts - 1
        return most

    async def list_jobs(self) -> None:
        """Exactly what it was told is there."""
        listing = await patiently(lambda: self._driver.list(WORKLOAD))
        found = {item.name: item for item in listing.items if item.name.startswith(f"{self.name}-")}
        assert found.keys() == self.jobs.keys(), f"{self.name}: {found.keys() ^ self.jobs.keys()}"
        for name, item in found.items():
            before = self.jobs[name].stops
            self.jobs[name].saw(item)
            self.done["stopped"] += self.jobs[name].stops - before
        self.done["listed"] += 1

    async def settle(self) -> None:
        """Make room: of the jobs that count for ever only one stays, so that every other can come to its end."""
        staying = [job for job in self.jobs.values() if job.form == "stays"]
        for job in staying[1:]:
            await self.delete(job)

    async def check_end(self) -> list[str]:
        """What is not as it must become; nothing in the end."""
        await self.list_jobs()
        wrong = []
        for job in self.jobs.values():
            found = await patiently(lambda job=job: self._driver.get(WORKLOAD, job.name, job.namespace))  # type: ignore[misc]
            status = decode(WorkloadObject, found.data).status
            wanted = {"stays": ("Running", 0), "ends": ("Completed", 0), "fails": ("Failed", job.attempts)}[job.form]
            again = status.interruption_count + max(0, status.pods.failed - 1)
            if (status.phase, status.pods.failed) != wanted or status.restarts > again:
                wrong.append(f"{job.name} ({job.form}, {job.attempts}): {status}")
        return wrong

    async def check_logs(self) -> int:
        """The logs of all its jobs, and what its followers saw; how many lines that was."""
        lines = 0
        for job in self.jobs.values():
            reader = LogFollower(
                self._connection,
                job,
                lambda job=job: self._pod(job),  # type: ignore[misc]
                lambda job=job: self._stops(job),  # type: ignore[misc]
            )
            here = connect(self._connection())
            async with here as server, server.logs(job.namespace, job.pod, LogOptions(offset=0)) as log:
                async for piece in log.chunks:
                    reader.data += piece
            reader.ended = job.form != "stays"
            lines += reader.check()
        for follower, task in zip(self.followers, self._following, strict=True):
            if follower.job.form != "stays" or follower.job.deleting:
                async with asyncio.timeout(SECONDS):
                    await task
            lines += follower.check()
        return lines

    async def close(self) -> None:
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        await self._driver.close()


@dataclass
class Team:
    """Eight people on one platform."""

    people: list[Person]
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _steps: int = 0
    _moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def done(self) -> Counter[str]:
        return sum((person.done for person in self.people), Counter())

    async def work(self) -> None:
        """All of them, until `enough`."""
        async with asyncio.TaskGroup() as group:
            for person in self.people:
                group.create_task(self._work(person))

    async def _work(self, person: Person) -> None:
        pace = random.Random(f"pace {person.name}")
        while not self._over.is_set():
            await person.step()
            async with self._moved:
                self._steps += 1
                self._moved.notify_all()
            # People are not machines; and jobs should come to run between two kills.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), pace.uniform(0, 0.4))

    def enough(self) -> None:
        self._over.set()

    async def moved(self, steps: int) -> None:
        goal = self._steps + steps
        async with asyncio.timeout(SECONDS), self._moved:
            await self._moved.wait_for(lambda: self._steps >= goal)

    async def settled(self) -> None:
        """Until everything has become what it must."""
        wrong = ["not looked at yet"]
        try:
            async with asyncio.timeout(SECONDS):
                for person in self.people:
                    await person.settle()
                while wrong:
                    wrong = [one for person in self.people for one in await person.check_end()]
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError("\n".join(wrong)) from None

    async def close(self) -> None:
        for person in self.people:
            await person.close()


async def check_store(driver: StoreDriver) -> dict[str, Pod]:
    """The pods by uid. No device is given out twice among those that hold something."""
    pods = (await patiently(lambda: Store(driver).list(Pod))).items
    given: Counter[tuple[str, int]] = Counter()
    for pod in pods:
        if pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed"):
            for share in shares_of(pod):
                given[pod.spec.node_name, share.index] += share.milli
    over = {device: milli for device, milli in given.items() if milli > GPU}
    assert not over, f"the store gives out more than a whole device: {over}"
    return {pod.metadata.uid: pod for pod in pods}
