"""Keeps one workload for each TrainingWorkload and InteractiveWorkload, and writes back how it fares.

    new                  a workload of the same name is made; it goes when this object goes
    changed              what changed here is changed there, and nothing else: a workload that somebody suspended with
                         `runai suspend` is not started again by an old line of YAML
    wrong                the status and an event say what and where; a workload that is there stays as it is
    workload deleted     it is not made again until the object changes: somebody meant it, or it was its time

What the workload was made from is kept on it as an annotation, so that a restart knows what has changed since.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aliquot import labels, units
from aliquot.admission.workload_admission import WorkloadAdmission
from aliquot.api import KINDS, Json, Kind, Metadata, ObjectReference, Owner, Workload, decode, encode, to_json
from aliquot.backends.kubernetes.v2alpha1.translation import Translation, translate
from aliquot.controllers.events import EventFacts, event_of
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.errors import Exists, Fault, Invalid, NotFound, OverLimit, PlatformError
from aliquot.store import object_rules
from aliquot.store.driver import Document
from aliquot.store.informer import Informer, Key
from aliquot.store.typed_store import Store

RawKind = Kind[dict[str, Any]]
ACCEPTED, COMPLETE = "Accepted", "Complete"  # conditions: it could be read; nothing of it was left out


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is to be said about an object, besides how its workload fares."""

    phase: str = ""  # instead of the workload's
    reason: str = ""
    message: str = ""
    left_out: Sequence[Fault] = ()


class RunaiWorkloadController:
    """The loop over one of the two kinds."""

    def __init__(
        self,
        store: Store,
        kind: RawKind,
        admission: WorkloadAdmission,
        workloads: Informer[Workload],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._kind, self._admission, self._clock = store, kind, admission, clock
        self.objects: Informer[Document] = Informer(store.driver, kind, lambda document: document)
        self.controller = Controller(kind.plural, self._reconcile)
        self.controller.watch(self.objects)
        workloads.listen(self._workload_changed)

    def _workload_changed(self, key: Key, old: Workload | None, new: Workload | None) -> None:
        for workload in (old, new):
            for owner in workload.metadata.owners if workload is not None else ():
                if owner.kind == self._kind.name:
                    self.controller.enqueue((key[0], owner.name))

    async def _reconcile(self, key: Key) -> None:
        try:
            seen = await self._store.driver.get(self._kind, key[1], key[0])
        except NotFound:
            return  # its workload goes with it
        if seen.metadata.get("deletionTimestamp"):
            return
        made = translate(self._kind.name, seen.name, seen.data.get("spec"))
        workload = await self._workload(seen)
        try:
            verdict, workload = await self._bring_about(seen, made, workload)
        except (Invalid, OverLimit) as exc:
            faults = [Fault(made.origin(one.path), one.text) for one in exc.faults]
            verdict = _wrong(faults, made) if faults else Outcome("Invalid", exc.reason, str(exc), made.left_out)
        status = status_of(seen, verdict, workload, self._clock())
        if status != (seen.data.get("status") or {}):
            await self._tell(seen, verdict)
            change = object_rules.difference(seen.data.get("status") or {}, status)
            await self._store.driver.patch(
                self._kind, seen.name, seen.namespace, {"status": change}, version=seen.version, status=True
            )

    async def _workload(self, seen: Document) -> Workload | None:
        try:
            return await self._store.get(Workload, seen.name, seen.namespace)
        except NotFound:
            return None

    async def _bring_about(
        self, seen: Document, made: Translation, workload: Workload | None
    ) -> tuple[Outcome, Workload | None]:
        if workload is not None and not _belongs(workload, seen):
            text = f"a workload {seen.name} is there already, which was not made from this; delete it, or rename this"
            return Outcome("Invalid", "NameTaken", text), None
        if made.faults:
            return _wrong(made.faults, made), workload
        if made.template_only and workload is None:
            text = "is a template, which is not run here; write a Template of aliquot.dev/v1 instead"
            return Outcome("Template", "Template", text, made.left_out), None
        if workload is not None:
            return Outcome(left_out=made.left_out), await self._follow(made, workload)
        before = seen.data.get("status") or {}
        if before.get("workloadUid") and before.get("observedGeneration") == seen.metadata.get("generation"):
            text = "its workload was deleted; change this object to run it again, or delete it"
            return Outcome("Deleted", "WorkloadDeleted", text, made.left_out), None
        return Outcome(left_out=made.left_out), await self._create(seen, made)

    async def _create(self, seen: Document, made: Translation) -> Workload | None:
        owner = Owner(
            api_version=self._kind.api_version, kind=self._kind.name, name=seen.name, uid=seen.uid, controller=True
        )
        place = Metadata(
            name=seen.name,
            namespace=seen.namespace,
            labels=seen.metadata.get("labels") or {},
            annotations={labels.TRANSLATED_SPEC: _text(made.spec)},
            owners=(owner,),
        )
        data = await self._admission.apply_defaults({"metadata": encode(place), "spec": made.spec}, seen.namespace)
        typed = decode(Workload, data, strict=True, what="workload")
        self._admission.validate(Document(to_json(typed)))
        try:
            return await self._store.create(typed)
        except Exists:
            self.controller.enqueue((seen.namespace, seen.name))  # look again: it may be ours, made by another replica
            return None

    async def _follow(self, made: Translation, workload: Workload) -> Workload:
        before = _read(workload.metadata.annotations.get(labels.TRANSLATED_SPEC, ""))
        change = object_rules.difference(before, made.spec)
        if not change:
            return workload
        kind, place, now = KINDS.of(Workload), workload.metadata, Document(to_json(workload))
        spec = object_rules.merged(now.data.get("spec") or {}, change)
        wanted = decode(Workload, {**now.data, "spec": spec}, strict=True, what="workload")
        self._admission.validate(Document(to_json(wanted)), now)
        patch = {"spec": change, "metadata": {"annotations": {labels.TRANSLATED_SPEC: _text(made.spec)}}}
        written = await self._store.driver.patch(kind, place.name, place.namespace, patch, version=place.version)
        return decode(Workload, written.data)

    async def _tell(self, seen: Document, verdict: Outcome) -> None:
        """What is wrong is an event too; once for each version of the object."""
        notes = []
        generation = str(seen.metadata.get("generation"))
        if verdict.phase:
            notes.append(EventFacts(verdict.reason, verdict.message, warning=True, key=generation))
        if verdict.left_out:
            notes.append(EventFacts("LeftOut", _listed(verdict.left_out), warning=True, key=generation))
        about = ObjectReference(
            api_version=self._kind.api_version, kind=self._kind.name, name=seen.name, namespace=seen.namespace,
            uid=seen.uid,
        )  # fmt: skip
        for note in notes:
            try:
                await self._store.create(event_of(about, note, "", self._clock()))
            except (Exists, PlatformError):
                continue  # told before, or not to be told: the status says it as well


def status_of(seen: Document, verdict: Outcome, workload: Workload | None, now: float) -> Json:
    """The whole status of an object."""
    before = seen.data.get("status") or {}
    generation = seen.metadata.get("generation")
    found: Json = {"observedGeneration": generation}
    if workload is not None:
        status = workload.status
        found |= {"workload": workload.metadata.name, "workloadUid": workload.metadata.uid}
        found |= {"phase": status.phase or "Creating", "reason": status.reason, "message": status.message}
        found |= {"nodes": list(status.nodes)}
    elif before.get("workloadUid") and verdict.phase == "Deleted":
        found |= {"workloadUid": before["workloadUid"]}
    if verdict.phase:
        # What runs still runs; that its change was not taken is said by the message and the condition.
        found |= {"phase": verdict.phase} if workload is None else {}
        found |= {"reason": verdict.reason, "message": verdict.message}
    accepted = verdict.phase not in ("Invalid",)
    conditions = [
        _condition(ACCEPTED, accepted, verdict.reason or "Read", "" if accepted else verdict.message, generation),
        _condition(COMPLETE, not verdict.left_out, "LeftOut" if verdict.left_out else "Read",
                   _listed(verdict.left_out), generation),
    ]  # fmt: skip
    found["conditions"] = [_since(one, before.get("conditions") or (), now) for one in conditions]
    return {key: value for key, value in found.items() if value not in ("", [], None)}


def _condition(name: str, holds: bool, reason: str, message: str, generation: Any) -> Json:
    said = {"type": name, "status": "True" if holds else "False", "reason": reason, "observedGeneration": generation}
    return {**said, **({"message": message} if message else {})}


def _since(condition: Json, before: Sequence[Json], now: float) -> Json:
    same = (one for one in before if (one["type"], one["status"]) == (condition["type"], condition["status"]))
    since = next((one.get("lastTransitionTime") for one in same), None)
    return {**condition, "lastTransitionTime": since or units.timestamp_text(int(now))}


def _wrong(faults: Sequence[Fault], made: Translation) -> Outcome:
    return Outcome("Invalid", "Invalid", _listed(faults), made.left_out)


def _listed(faults: Sequence[Fault]) -> str:
    return "; ".join(map(str, faults))


def _belongs(workload: Workload, seen: Document) -> bool:
    return any(owner.uid == seen.uid for owner in workload.metadata.owners)


def _text(spec: Json) -> str:
    return json.dumps(spec, sort_keys=True, separators=(",", ":"))


def _read(text: str) -> Json:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
