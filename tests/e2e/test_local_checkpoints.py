"""What a workload's pods leave in their checkpoint folder is there for the next one, and for nobody else."""

from __future__ import annotations

from support.pods.world import World, code, needs_root, pod, shell
from support.stores.running import until

NOTE = "$ALIQUOT_CHECKPOINT_DIR/note"


async def gone(world: World, *paths: object) -> None:
    async def away() -> bool:
        return not any(path.exists() for path in paths)  # type: ignore[attr-defined]

    await until(away)


async def test_the_next_pod_finds_them(world: World) -> None:
    """A pod that comes after another one of its workload reads what that one wrote."""
    workload = await world.workload("w")
    async with world.agent():
        first = await world.run(shell("w-0-0", f"echo 7 > {NOTE}; echo kept; exec sleep 1000", workload=workload))
        await world.printed(first, "kept")
        await world.delete(first, grace=0)
        await world.gone(first)
        _, log = await world.finish(shell("w-0-0", f"cat {NOTE}", workload=workload))
    assert log == "7\n"


async def test_pods_share_them(world: World) -> None:
    """Two pods of one workload see one folder."""
    workload = await world.workload("w")
    async with world.agent():
        wait = f"until [ -e {NOTE} ]; do sleep 0.02; done; cat {NOTE}"
        reader = await world.run(shell("w-0-0", wait, workload=workload))
        await world.finish(shell("w-1-0", f"echo 7 > {NOTE}.new; mv {NOTE}.new {NOTE}", workload=workload))
        ended = await world.phase(reader, "Succeeded", "Failed")
        assert await world.log(ended) == "7\n"


async def test_own_variable_wins(world: World) -> None:
    """A job that says itself where its checkpoints go is left alone."""
    workload = await world.workload("w")
    env = {"ALIQUOT_CHECKPOINT_DIR": "/elsewhere"}
    async with world.agent():
        _, log = await world.finish(shell("w-0-0", "echo $ALIQUOT_CHECKPOINT_DIR", env=env, workload=workload))
    assert log == "/elsewhere\n"


async def test_a_pod_of_nobody_has_none(world: World) -> None:
    """A pod without a workload has nothing that would last."""
    async with world.agent():
        _, log = await world.finish(shell("p-0-0", "echo [$ALIQUOT_CHECKPOINT_DIR]"))
    assert log == "[]\n"


async def test_they_go_with_their_workload(world: World) -> None:
    """When a workload is deleted its checkpoints go, once its last pod has stopped writing; others stay."""
    workload, other = await world.workload("w"), await world.workload("other")
    async with world.agent():
        await world.finish(shell("other-0-0", f"echo 7 > {NOTE}", workload=other))
        writer = await world.run(shell("w-0-0", f"while :; do echo 7 > {NOTE}; done", workload=workload))
        await until(lambda: _exists(world, workload))
        await world.store.delete(workload)
        _, log = await world.finish(shell("p-0-0", "echo meanwhile"))
        assert log == "meanwhile\n"
        assert world.checkpoints(workload).exists()
        await world.delete(writer, grace=0)
        await gone(world, world.checkpoints(workload))
    assert (world.checkpoints(other) / "note").read_text() == "7\n"


async def _exists(world: World, workload: object) -> bool:
    return (world.checkpoints(workload) / "note").exists()  # type: ignore[arg-type]


async def test_they_go_when_nobody_looked(world: World) -> None:
    """Checkpoints of a workload that was deleted while no platform ran go at the next start; others stay."""
    workload, other = await world.workload("w"), await world.workload("other")
    async with world.agent():
        for owner in (workload, other):
            name = f"{owner.metadata.name}-0-0"
            done, _ = await world.finish(shell(name, f"mkdir -m 0 {NOTE}", workload=owner))
            await world.delete(done, grace=0)
            await world.gone(done)
    await world.store.delete(workload)
    async with world.agent():
        await gone(world, world.checkpoints(workload))
        assert (world.checkpoints(other) / "note").exists()


async def test_they_go_with_their_project(world: World) -> None:
    """When the last workload of a project is gone, nothing of the project is left there."""
    workload = await world.workload("w")
    async with world.agent():
        done, _ = await world.finish(shell("w-0-0", f"echo 7 > {NOTE}", workload=workload))
        await world.store.delete(workload)
        await world.delete(done, grace=0)
        await gone(world, world.checkpoints(workload).parent)


async def test_a_false_name_opens_nothing(world: World) -> None:
    """A pod of another project that claims to be of this workload gets an empty folder of its own."""
    workload = await world.workload("w")
    async with world.agent():
        await world.finish(shell("w-0-0", f"echo 7 > {NOTE}", workload=workload))
        thief = shell("w-0-0", "ls -A $ALIQUOT_CHECKPOINT_DIR", namespace="runai-team-b", workload=workload)
        ended, log = await world.finish(thief)
    assert (code(ended), log) == (0, "")


@needs_root
async def test_another_project_does_not_see_them(island: World) -> None:
    """To a job of another project the folder does not exist, by either of its names."""
    workload = await island.workload("w")
    async with island.agent():
        await island.run(shell("w-0-0", f"echo 7 > {NOTE}; exec sleep 1000", workload=workload))
        await until(lambda: _exists(island, workload))
        script = f"cat {island.checkpoints(workload)}/note /checkpoints/note; exit 9"
        ended, log = await island.finish(shell("p-0-0", script, namespace="runai-team-b"))
    assert code(ended) == 9
    assert log.count("No such file") == 2


@needs_root
async def test_a_link_leads_nowhere(island: World) -> None:
    """A job that leaves a link to the machine in its folder harms nothing when the folder is removed."""
    workload = await island.workload("w")
    outside = island.data / "outside"
    async with island.agent():
        outside.mkdir()
        (outside / "file").touch()
        done, _ = await island.finish(pod("w-0-0", "ln", "-s", str(outside), "/checkpoints/link", workload=workload))
        await island.store.delete(workload)
        await island.delete(done, grace=0)
        await gone(island, island.checkpoints(workload))
    assert (outside / "file").exists()
