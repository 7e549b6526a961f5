"""Keeps one Workload for each TrainingWorkload and InteractiveWorkload, and writes its status back.

    created              a workload of the same name is created; it is deleted with this object
    changed              only the fields that changed here are changed there: a workload that a user suspended with
                         `runai suspend` is not started again by an unchanged line of YAML
    invalid              the status and an event list the faults; an existing workload stays as it is
    workload deleted     it is not created again until the object changes: a user deleted it, or its lifetime was over

An annotation of the workload holds the spec that it was made from, so that changes are known after a restart.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aliquot import labels, units
from aliquot.admission.workload_admission import WorkloadAdmission
from aliquot.api import KINDS, Json, Metadata, ObjectReference, Owner, Workload, decode, encode, to_json
from aliquot.backends.kubernetes.unstructured_kinds import UnstructuredKind
from aliquot.backends.kubernetes.v2alpha1.translation import Translation, translate
from aliquot.controllers.events import EventFacts, event_of
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.errors import Exists, Fault, Invalid, NotFound, OverLimit, PlatformError
from aliquot.store import object_rules
from aliquot.store.driver import Document
from aliquot.store.informer import Informer, Key
from aliquot.store.typed_store import Store

ACCEPTED, COMPLETE = "Accepted", "Complete"  # conditions: the object is valid; no field of it was left out


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the status of an object reports besides its workload's status."""

    phase: str = ""  # instead of the workload's phase
    reason: str = ""
    message: str = ""
    left_out: Sequence[Fault] = ()


class RunaiWorkloadController:
    """The controller of one of the two kinds."""

    def __init__(
        self,
        store: Store,
        kind: UnstructuredKind,
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
            source = await self._store.driver.get(self._kind, key[1], key[0])
        except NotFound:
            return  # Kubernetes deletes its workload
        if source.metadata.get("deletionTimestamp"):
            return
        translation = translate(self._kind.name, source.name, source.data.get("spec"))
        workload = await self._workload(source)
        try:
            outcome, workload = await self._apply(source, translation, workload)
        except (Invalid, OverLimit) as exc:
            faults = [Fault(translation.origin(fault.path), fault.text) for fault in exc.faults]
            if faults:
                outcome = _invalid(faults, translation)
            else:
                outcome = Outcome("Invalid", exc.reason, str(exc), translation.left_out)
        status = status_of(source, outcome, workload, self._clock())
        if status != (source.data.get("status") or {}):
            await self._write_events(source, outcome)
            change = object_rules.difference(source.data.get("status") or {}, status)
            await self._store.driver.patch(
                self._kind, source.name, source.namespace, {"status": change}, version=source.version, status=True
            )

    async def _workload(self, source: Document) -> Workload | None:
        try:
            return await self._store.get(Workload, source.name, source.namespace)
        except NotFound:
            return None

    async def _apply(
        self, source: Document, translation: Translation, workload: Workload | None
    ) -> tuple[Outcome, Workload | None]:
        if workload is not None and not _is_owned_by(workload, source):
            text = f"a workload {source.name} exists that was not made from this object; delete it, or rename this"
            return Outcome("Invalid", "NameTaken", text), None
        if translation.faults:
            return _invalid(translation.faults, translation), workload
        if translation.template_only and workload is None:
            text = "is a template, which is not supported here; write a Template of aliquot.dev/v1 instead"
            return Outcome("Template", "Template", text, translation.left_out), None
        if workload is not None:
            return Outcome(left_out=translation.left_out), await self._update(translation, workload)
        before = source.data.get("status") or {}
        if before.get("workloadUid") and before.get("observedGeneration") == source.metadata.get("generation"):
            text = "its workload was deleted; change this object to run it again, or delete it"
            return Outcome("Deleted", "WorkloadDeleted", text, translation.left_out), None
        return Outcome(left_out=translation.left_out), await self._create(source, translation)

    async def _create(self, source: Document, translation: Translation) -> Workload | None:
        owner = Owner(
            api_version=self._kind.api_version, kind=self._kind.name, name=source.name, uid=source.uid, controller=True
        )
        meta = Metadata(
            name=source.name,
            namespace=source.namespace,
            labels=source.metadata.get("labels") or {},
            annotations={labels.TRANSLATED_SPEC: _spec_text(translation.spec)},
            owners=(owner,),
        )
        data = {"metadata": encode(meta), "spec": translation.spec}
        data = await self._admission.apply_defaults(data, source.namespace)
        typed = decode(Workload, data, strict=True, what="workload")
        self._admission.validate(Document(to_json(typed)))
        try:
            return await self._store.create(typed)
        except Exists:
            self.controller.enqueue((source.namespace, source.name))  # retry: another replica may have created it
            return None

    async def _update(self, translation: Translation, workload: Workload) -> Workload:
        before = _parse_spec(workload.metadata.annotations.get(labels.TRANSLATED_SPEC, ""))
        change = object_rules.difference(before, translation.spec)
        if not change:
            return workload
        kind, meta, current = KINDS.of(Workload), workload.metadata, Document(to_json(workload))
        spec = object_rules.merged(current.data.get("spec") or {}, change)
        wanted = decode(Workload, {**current.data, "spec": spec}, strict=True, what="workload")
        self._admission.validate(Document(to_json(wanted)), current)
        patch = {"spec": change, "metadata": {"annotations": {labels.TRANSLATED_SPEC: _spec_text(translation.spec)}}}
        written = await self._store.driver.patch(kind, meta.name, meta.namespace, patch, version=meta.version)
        return decode(Workload, written.data)

    async def _write_events(self, source: Document, outcome: Outcome) -> None:
        """Reports faults as events too; once for each generation of the object."""
        events = []
        generation = str(source.metadata.get("generation"))
        if outcome.phase:
            events.append(EventFacts(outcome.reason, outcome.message, warning=True, key=generation))
        if outcome.left_out:
            events.append(EventFacts("LeftOut", _listed(outcome.left_out), warning=True, key=generation))
        about = ObjectReference(
            api_version=self._kind.api_version, kind=self._kind.name, name=source.name, namespace=source.namespace,
            uid=source.uid,
        )  # fmt: skip
        for event in events:
            try:
                await self._store.create(event_of(about, event, "", self._clock()))
            except (Exists, PlatformError):
                continue  # exists already, or cannot be written: the status says the same


def status_of(source: Document, outcome: Outcome, workload: Workload | None, now: float) -> Json:
    """The whole status of an object."""
    before = source.data.get("status") or {}
    generation = source.metadata.get("generation")
    result: Json = {"observedGeneration": generation}
    if workload is not None:
        status = workload.status
        result |= {"workload": workload.metadata.name, "workloadUid": workload.metadata.uid}
        result |= {"phase": status.phase or "Creating", "reason": status.reason, "message": status.message}
        result |= {"nodes": list(status.nodes)}
    elif before.get("workloadUid") and outcome.phase == "Deleted":
        result |= {"workloadUid": before["workloadUid"]}
    if outcome.phase:
        # The workload still runs; the message and the condition say that the change was not accepted.
        result |= {"phase": outcome.phase} if workload is None else {}
        result |= {"reason": outcome.reason, "message": outcome.message}
    accepted = outcome.phase not in ("Invalid",)
    conditions = [
        _condition(ACCEPTED, accepted, outcome.reason or "Read", "" if accepted else outcome.message, generation),
        _condition(COMPLETE, not outcome.left_out, "LeftOut" if outcome.left_out else "Read",
                   _listed(outcome.left_out), generation),
    ]  # fmt: skip
    result["conditions"] = [
        _with_transition_time(condition, before.get("conditions") or (), now) for condition in conditions
    ]
    return {key: value for key, value in result.items() if value not in ("", [], None)}


def _condition(name: str, holds: bool, reason: str, message: str, generation: Any) -> Json:
    condition = {
        "type": name,
        "status": "True" if holds else "False",
        "reason": reason,
        "observedGeneration": generation,
    }
    return {**condition, **({"message": message} if message else {})}


def _with_transition_time(condition: Json, before: Sequence[Json], now: float) -> Json:
    unchanged = (old for old in before if (old["type"], old["status"]) == (condition["type"], condition["status"]))
    since = next((old.get("lastTransitionTime") for old in unchanged), None)
    return {**condition, "lastTransitionTime": since or units.timestamp_text(int(now))}


def _invalid(faults: Sequence[Fault], translation: Translation) -> Outcome:
    return Outcome("Invalid", "Invalid", _listed(faults), translation.left_out)


def _listed(faults: Sequence[Fault]) -> str:
    return "; ".join(map(str, faults))


def _is_owned_by(workload: Workload, source: Document) -> bool:
    return any(owner.uid == source.uid for owner in workload.metadata.owners)


def _spec_text(spec: Json) -> str:
    return json.dumps(spec, sort_keys=True, separators=(",", ":"))


def _parse_spec(text: str) -> Json:
    try:
        spec = json.loads(text)
    except ValueError:
        return {}
    return spec if isinstance(spec, dict) else {}
