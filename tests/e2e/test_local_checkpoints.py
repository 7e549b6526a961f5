"""Checkpoints that a workload's pods write are there for its next pod, and for no other workload."""

from __future__ import annotations

from support.pods.agent_harness import AgentHarness, code, command_pod, needs_root, shell
from support.waiting import eventually

NOTE = "$ALIQUOT_CHECKPOINT_DIR/note"


async def gone(harness: AgentHarness, *paths: object) -> None:
    async def away() -> bool:
        return not any(path.exists() for path in paths)  # type: ignore[attr-defined]

    await eventually(away)


async def test_the_next_pod_finds_them(harness: AgentHarness) -> None:
    """A pod reads the checkpoints of an earlier pod of its workload."""
    workload = await harness.workload("w")
    async with harness.agent():
        first = await harness.run(shell("w-0-0", f"echo 7 > {NOTE}; echo kept; exec sleep 1000", workload=workload))
        await harness.printed(first, "kept")
        await harness.delete(first, grace=0)
        await harness.gone(first)
        _, log = await harness.finish(shell("w-0-0", f"cat {NOTE}", workload=workload))
    assert log == "7\n"


async def test_pods_share_them(harness: AgentHarness) -> None:
    """Two pods of one workload see one folder."""
    workload = await harness.workload("w")
    async with harness.agent():
        wait = f"until [ -e {NOTE} ]; do sleep 0.02; done; cat {NOTE}"
        reader = await harness.run(shell("w-0-0", wait, workload=workload))
        await harness.finish(shell("w-1-0", f"echo 7 > {NOTE}.new; mv {NOTE}.new {NOTE}", workload=workload))
        ended = await harness.phase(reader, "Succeeded", "Failed")
        assert await harness.log(ended) == "7\n"


async def test_own_variable_wins(harness: AgentHarness) -> None:
    """A job that sets the variable itself keeps its value."""
    workload = await harness.workload("w")
    env = {"ALIQUOT_CHECKPOINT_DIR": "/elsewhere"}
    async with harness.agent():
        _, log = await harness.finish(shell("w-0-0", "echo $ALIQUOT_CHECKPOINT_DIR", env=env, workload=workload))
    assert log == "/elsewhere\n"


async def test_a_pod_without_a_workload_has_none(harness: AgentHarness) -> None:
    """A pod without a workload has no checkpoint folder."""
    async with harness.agent():
        _, log = await harness.finish(shell("p-0-0", "echo [$ALIQUOT_CHECKPOINT_DIR]"))
    assert log == "[]\n"


async def test_removed_with_the_workload(harness: AgentHarness) -> None:
    """When a workload is deleted, its checkpoints are removed after its last pod has stopped; others stay."""
    workload, other = await harness.workload("w"), await harness.workload("other")
    async with harness.agent():
        await harness.finish(shell("other-0-0", f"echo 7 > {NOTE}", workload=other))
        writer = await harness.run(shell("w-0-0", f"while :; do echo 7 > {NOTE}; done", workload=workload))
        await eventually(lambda: _exists(harness, workload))
        await harness.store.delete(workload)
        _, log = await harness.finish(shell("p-0-0", "echo meanwhile"))
        assert log == "meanwhile\n"
        assert harness.checkpoints(workload).exists()
        await harness.delete(writer, grace=0)
        await gone(harness, harness.checkpoints(workload))
    assert (harness.checkpoints(other) / "note").read_text() == "7\n"


async def _exists(harness: AgentHarness, workload: object) -> bool:
    return (harness.checkpoints(workload) / "note").exists()  # type: ignore[arg-type]


async def test_removed_after_the_platform_was_down(harness: AgentHarness) -> None:
    """Checkpoints of a workload that was deleted while no platform ran are removed at the next start; others stay."""
    workload, other = await harness.workload("w"), await harness.workload("other")
    async with harness.agent():
        for owner in (workload, other):
            name = f"{owner.metadata.name}-0-0"
            done, _ = await harness.finish(shell(name, f"mkdir -m 0 {NOTE}", workload=owner))
            await harness.delete(done, grace=0)
            await harness.gone(done)
    await harness.store.delete(workload)
    async with harness.agent():
        await gone(harness, harness.checkpoints(workload))
        assert (harness.checkpoints(other) / "note").exists()


async def test_removed_with_the_project(harness: AgentHarness) -> None:
    """When the last workload of a project is gone, the project's folder is removed."""
    workload = await harness.workload("w")
    async with harness.agent():
        done, _ = await harness.finish(shell("w-0-0", f"echo 7 > {NOTE}", workload=workload))
        await harness.store.delete(workload)
        await harness.delete(done, grace=0)
        await gone(harness, harness.checkpoints(workload).parent)


async def test_a_pod_that_names_a_foreign_workload(harness: AgentHarness) -> None:
    """A pod of another project that claims to be of this workload gets an empty folder of its own."""
    workload = await harness.workload("w")
    async with harness.agent():
        await harness.finish(shell("w-0-0", f"echo 7 > {NOTE}", workload=workload))
        thief = shell("w-0-0", "ls -A $ALIQUOT_CHECKPOINT_DIR", namespace="runai-team-b", workload=workload)
        ended, log = await harness.finish(thief)
    assert (code(ended), log) == (0, "")


@needs_root
async def test_another_project_does_not_see_them(isolated_harness: AgentHarness) -> None:
    """For a job of another project the folder does not exist, by either of its paths."""
    workload = await isolated_harness.workload("w")
    async with isolated_harness.agent():
        await isolated_harness.run(shell("w-0-0", f"echo 7 > {NOTE}; exec sleep 1000", workload=workload))
        await eventually(lambda: _exists(isolated_harness, workload))
        script = f"cat {isolated_harness.checkpoints(workload)}/note /checkpoints/note; exit 9"
        ended, log = await isolated_harness.finish(shell("p-0-0", script, namespace="runai-team-b"))
    assert code(ended) == 9
    assert log.count("No such file") == 2


@needs_root
async def test_a_link_in_the_folder_is_not_followed(isolated_harness: AgentHarness) -> None:
    """When the folder is removed, a link that a job left in it is not followed."""
    workload = await isolated_harness.workload("w")
    outside = isolated_harness.data / "outside"
    async with isolated_harness.agent():
        outside.mkdir()
        (outside / "file").touch()
        done, _ = await isolated_harness.finish(
            command_pod("w-0-0", "ln", "-s", str(outside), "/checkpoints/link", workload=workload)
        )
        await isolated_harness.store.delete(workload)
        await isolated_harness.delete(done, grace=0)
        await gone(isolated_harness, isolated_harness.checkpoints(workload))
    assert (outside / "file").exists()
