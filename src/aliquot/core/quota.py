"""What a queue may still take: within its quota what cannot be stopped, beyond it what can, never beyond its limit."""

from __future__ import annotations

from aliquot.core.model import Job, Queue
from aliquot.core.plan import Refusal, Verdict
from aliquot.core.room import Room, Used


def within_quota(job: Job, queue: Queue | None, room: Room) -> Refusal | None:
    if queue is None:
        return Refusal("no-project", Verdict.NEVER, f"project {job.queue} does not exist")
    pending = [task for task in job.tasks if not task.node]
    wanted = Used(
        gpu=sum(room.counted(task.request) for task in pending),
        cpu=sum(task.request.cpu for task in pending),
        memory=sum(task.request.memory for task in pending),
    )
    used = room.queues.get(job.queue, Used())
    if queue.gpu_limit is not None and used.gpu + wanted.gpu > queue.gpu_limit:
        return _over(
            "over-limit", f"limit of {_gpus(queue.gpu_limit)} GPUs", job, used.gpu, wanted.gpu, queue.gpu_limit
        )
    if not job.preemptible:
        held = Used(gpu=used.fixed_gpu, cpu=used.fixed_cpu, memory=used.fixed_memory)
        return _beyond(job, queue, held, wanted, "what cannot be preempted stays within quota")
    if not queue.over_quota:
        return _beyond(job, queue, used, wanted, "it may not go over quota")
    return None


def _beyond(job: Job, queue: Queue, held: Used, wanted: Used, why: str) -> Refusal | None:
    if queue.gpu is not None and held.gpu + wanted.gpu > queue.gpu:
        return _over("over-quota", f"quota of {_gpus(queue.gpu)} GPUs ({why})", job, held.gpu, wanted.gpu, queue.gpu)
    for name, quota, amount in (
        ("CPU", queue.cpu, held.cpu + wanted.cpu),
        ("memory", queue.memory, held.memory + wanted.memory),
    ):
        if quota is not None and amount > quota:
            return Refusal("over-quota", Verdict.NOT_NOW, f"project {job.queue} would exceed its {name} quota ({why})")
    return None


def _over(code: str, bound: str, job: Job, held: int, wanted: int, most: int) -> Refusal:
    verdict = Verdict.NEVER if wanted > most else Verdict.NOT_NOW
    text = f"project {job.queue} holds {_gpus(held)} and asks for {_gpus(wanted)} more: over its {bound}"
    return Refusal(code, verdict, text, missing_gpu=held + wanted - most)


def _gpus(milli: int) -> str:
    return f"{milli / 1000:g}"
