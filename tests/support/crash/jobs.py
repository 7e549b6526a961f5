"""Users that submit, list, follow and delete jobs while the platform is killed, and that know which jobs must exist.

Each user is the only writer of its jobs. A response settles a request; after a request without a response the user
reads the object. Every job prints numbers from 0, so its log shows each gap, each repetition and each second start.

A job may be evicted for another one. Then its status records the interruption, it waits, and its next pod counts from
0 again.
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
from support.crash.clients import SECONDS, retry_while_unavailable
from support.stores.namespace import document

WORKLOAD = KINDS.named("Workload")
PROJECTS = ("team-a", "team-b", "team-c", "team-d")
GPUS = (
    0,
    0.25,
    0.5,
    1,
    2,
    2,
)  # together more than the cluster has, so that jobs are evicted; one job of each user always fits
Form = Literal["stays", "ends", "fails"]
# Ten lines at once, then a pause: one read gets part of a burst or several, and there is no fork per line.
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
    fresh: bool = True  # its name was not used before, so a pod of its name belongs to it
    uid: str = ""
    deleting: bool = False  # requested; from then on it may disappear at any moment
    final: str = ""  # its final phase, once seen
    stops: int = 0  # evictions for other jobs

    @property
    def namespace(self) -> str:
        return f"runai-{self.project}"

    @property
    def pod(self) -> str:
        return f"{self.name}-0-0"

    @property
    def attempts(self) -> int:
        """The number of pods until the job has failed finally."""
        return int(self.spec["backoffLimit"]) + 1

    def observe(self, document: Document) -> None:
        assert document.uid == self.uid, f"{self.name} is another object now"
        status = document.data.get("status", {})
        phase, stops = status.get("phase", ""), status.get("interruptionCount", 0)
        assert stops >= self.stops, f"{self.name} lost interruptions"
        self.stops = stops
        assert not self.final or phase == self.final, f"{self.name} was {self.final} and is {phase}"
        self.final = phase if phase in _FINAL else ""


@dataclass
class LogFollower:
    """Reads a job's log from its beginning, and resumes after the last byte when the stream breaks."""

    connection: Callable[[], Connection]
    job: Job
    current: Callable[[], Awaitable[str]]  # the uid of its pod; `NotFound` when it has none
    stops: Callable[[], Awaitable[set[str]]]  # uids of evicted pods
    data: bytes = b""
    resumed: int = 0
    ended: bool = False
    _pod: str = ""  # uid of the pod whose log it is
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
            async for chunk in log.chunks:
                self.data += chunk
        # The server ended the log. For a job that counts for ever that is right only once it is deleted or evicted; an
        # evicted job will have another pod.
        if not self.job.deleting and not self._is_complete and pod in await self.stops():
            return
        assert self.job.form != "stays" or self.job.deleting, f"the log of {self.job.name} ended"
        self.ended = True

    @property
    def _is_complete(self) -> bool:
        return self.data.count(b"\n") == _LINES[self.job.form]

    async def _begin(self, pod: str) -> None:
        """Follow the next pod from its beginning; the last one must have been evicted."""
        if self.data:  # a pod that the node refused has no log
            self.check()
            stopped = await self.stops()
            assert self.job.deleting or self._pod in stopped, f"{self.job.name} was started again without a reason"
        self._pod, self.data = pod, b""

    def check(self) -> int:
        """The number of lines; each must be there once and in order, and all of them if the job has ended."""
        text = self.data.decode()
        lines = text.count("\n")
        assert counted(lines + 1).startswith(text), f"{self.job.name}: {text[:500]!r}"
        if self.ended and not self.job.deleting:
            assert lines == _LINES[self.job.form], f"{self.job.name} printed {lines} lines"
        return lines


class JobUser:
    def __init__(
        self,
        driver: StoreDriver,
        connection: Callable[[], Connection],
        name: str,
        projects: Sequence[str] = PROJECTS,
        nonpreemptible_project: str = "team-d",
    ) -> None:
        """`nonpreemptible_project`: the project whose quota is enough for all nonpreemptible jobs."""
        self._driver, self._connection = driver, connection
        self._projects, self._nonpreemptible_project = projects, nonpreemptible_project
        self._random = random.Random(name)
        self._number = 0
        self._free_names: list[str] = []  # of deleted jobs, for reuse
        self.name = name
        self.jobs: dict[str, Job] = {}
        self.followers: list[LogFollower] = []
        self._following: list[asyncio.Task[None]] = []
        self.done: Counter[str] = Counter()

    async def step(self) -> None:
        """Makes one request; when it returns, the user knows whether it took effect."""
        choice = self._random.random()
        if len(self.jobs) < 4 and choice < 0.5:
            await self._submit()
        elif self.jobs and choice > (0.85 if len(self.jobs) < 4 else 0.6):
            await self.delete(self._random.choice(list(self.jobs.values())))
        else:
            await self.list_jobs()
        for task in self._following:
            if task.done():
                task.result()  # raises the error of a failed follower

    async def _submit(self) -> None:
        job = self._new()
        workload = document(WORKLOAD, job.name, job.namespace, job.spec)
        try:
            job.uid = (await self._driver.create(WORKLOAD, workload)).uid
            self.done["submitted"] += 1
        except Conflict:
            # A name is reused only after this user saw its workload deleted.
            raise AssertionError(f"{job.name} was deleted and still exists") from None
        except Unavailable:
            self.done["broken off"] += 1
            stored = await self._read(job)
            if stored is None:
                return
            job.uid = stored.uid
        self.jobs[job.name] = job
        if job.fresh and job.attempts == 1 and self._random.random() < 0.5:
            self._follow(job)

    def _new(self) -> Job:
        form: Form = self._random.choices(("stays", "ends", "fails"), (5, 3, 2))[0]
        interactive = form == "stays" and self._random.random() < 0.3
        # Nonpreemptible jobs must stay within quota.
        project = self._nonpreemptible_project if interactive else self._random.choice(self._projects)
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
                break  # an earlier attempt without a response took effect
            except Unavailable:
                self.done["broken off"] += 1
                stored = await self._read(job)
                if stored is None:
                    break
                assert stored.uid == job.uid, f"{job.name} is another object now"
        del self.jobs[job.name]
        if all(follower.job is not job for follower in self.followers):
            self._free_names.append(f"{job.name}/{job.project}")

    async def _read(self, job: Job) -> Document | None:
        try:
            return await retry_while_unavailable(lambda: self._driver.get(WORKLOAD, job.name, job.namespace))
        except NotFound:
            return None

    async def _pod(self, job: Job) -> str:
        return (await self._driver.get(KINDS.of(Pod), job.pod, job.namespace)).uid

    async def _stops(self, job: Job) -> set[str]:
        stored = await self._read(job)
        if stored is None:
            return set()
        return {interruption.pod for interruption in decode(WorkloadObject, stored.data).status.interruptions}

    async def starts(self) -> dict[tuple[str, str], int]:
        """The most pods that each job may have had: one, and another for each failure or eviction."""
        most = {}
        for job in self.jobs.values():
            if job.fresh:
                status = decode(WorkloadObject, (await self._driver.get(WORKLOAD, job.name, job.namespace)).data).status
                assert len(status.interruptions) == status.interruption_count, job.name
                most[job.project, job.name] = 1 + status.interruption_count + job.attempts - 1
        return most

    async def list_jobs(self) -> None:
        """Checks that exactly this user's jobs exist."""
        listing = await retry_while_unavailable(lambda: self._driver.list(WORKLOAD))
        stored = {item.name: item for item in listing.items if item.name.startswith(f"{self.name}-")}
        assert stored.keys() == self.jobs.keys(), f"{self.name}: {stored.keys() ^ self.jobs.keys()}"
        for name, item in stored.items():
            before = self.jobs[name].stops
            self.jobs[name].observe(item)
            self.done["stopped"] += self.jobs[name].stops - before
        self.done["listed"] += 1

    async def delete_endless_jobs(self) -> None:
        """Deletes all but one of the jobs that run for ever, so that the others get GPUs and can end."""
        staying = [job for job in self.jobs.values() if job.form == "stays"]
        for job in staying[1:]:
            await self.delete(job)

    async def check_end(self) -> list[str]:
        """The jobs that are not yet in their expected final state."""
        await self.list_jobs()
        wrong = []
        for job in self.jobs.values():
            stored = await retry_while_unavailable(lambda job=job: self._driver.get(WORKLOAD, job.name, job.namespace))  # type: ignore[misc]
            status = decode(WorkloadObject, stored.data).status
            wanted = {"stays": ("Running", 0), "ends": ("Completed", 0), "fails": ("Failed", job.attempts)}[job.form]
            most_restarts = status.interruption_count + max(0, status.pods.failed - 1)
            if (status.phase, status.pods.failed) != wanted or status.restarts > most_restarts:
                wrong.append(f"{job.name} ({job.form}, {job.attempts}): {status}")
        return wrong

    async def check_logs(self) -> int:
        """Checks the logs of all jobs and of all followers; returns the number of lines."""
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
                async for chunk in log.chunks:
                    reader.data += chunk
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
class JobUserGroup:
    """Users that work on one platform at the same time."""

    users: list[JobUser]
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _steps: int = 0
    _progress: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def done(self) -> Counter[str]:
        return sum((user.done for user in self.users), Counter())

    async def run(self) -> None:
        """Lets all users work until `stop`."""
        async with asyncio.TaskGroup() as group:
            for user in self.users:
                group.create_task(self._run(user))

    async def _run(self, user: JobUser) -> None:
        pace = random.Random(f"pace {user.name}")
        while not self._stopped.is_set():
            await user.step()
            async with self._progress:
                self._steps += 1
                self._progress.notify_all()
            # A pause as of a person, which also lets jobs start between two kills.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), pace.uniform(0, 0.4))

    def stop(self) -> None:
        self._stopped.set()

    async def wait_for_steps(self, steps: int) -> None:
        goal = self._steps + steps
        async with asyncio.timeout(SECONDS), self._progress:
            await self._progress.wait_for(lambda: self._steps >= goal)

    async def wait_until_settled(self) -> None:
        """Waits until every job is in its expected final state."""
        wrong = ["not checked yet"]
        try:
            async with asyncio.timeout(SECONDS):
                for user in self.users:
                    await user.delete_endless_jobs()
                while wrong:
                    wrong = [problem for user in self.users for problem in await user.check_end()]
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError("\n".join(wrong)) from None

    async def close(self) -> None:
        for user in self.users:
            await user.close()


async def check_store(driver: StoreDriver) -> dict[str, Pod]:
    """The pods by uid. Fails when their shares exceed a device."""
    pods = (await retry_while_unavailable(lambda: Store(driver).list(Pod))).items
    allocated: Counter[tuple[str, int]] = Counter()
    for pod in pods:
        if pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed"):
            for share in shares_of(pod):
                allocated[pod.spec.node_name, share.index] += share.milli
    over = {device: milli for device, milli in allocated.items() if milli > GPU}
    assert not over, f"the store has more than a whole device allocated: {over}"
    return {pod.metadata.uid: pod for pod in pods}
