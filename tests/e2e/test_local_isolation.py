"""As root: what a job of one project can do to the platform and to other projects, which is nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from aliquot.backends.local.runtime import Launch, PodAssignment
from aliquot.backends.local.runtimes import syscalls
from aliquot.backends.local.runtimes.process import ProcessRuntime
from aliquot.streams import TerminalSize
from support.pods.world import World, code, needs_root, pod, shell
from support.stores.running import until

pytestmark = needs_root


def secrets(world: World) -> None:
    world.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("admin.token", "aliquot.db"):
        (world.data / name).write_text("secret")
        (world.data / name).chmod(0o644)  # even if somebody was careless


def publish(folder: Path) -> None:
    folder.chmod(0o755)
    (folder / "data.txt").write_text("public")
    (folder / "data.txt").chmod(0o644)


@pytest.mark.parametrize("name", ["admin.token", "aliquot.db"])
async def test_secrets_do_not_exist(island: World, name: str) -> None:
    """The token and the database are not there."""
    secrets(island)
    async with island.agent():
        ended, log = await island.finish(shell("p-0-0", f"cat {island.data / name} && exit 0; exit 9"))
    assert code(ended) == 9
    assert "No such file" in log


async def test_files_of_another_project_do_not_exist(island: World) -> None:
    """The folder of another project's pod is not there."""
    async with island.agent():
        victim = await island.run(shell("v-0-0", "echo mine > file; sleep infinity", namespace="runai-team-b"))
        folder = island.data / "pods" / victim.metadata.uid
        _, log = await island.finish(shell("p-0-0", f"ls {folder}/work {island.data} /tmp /workload; exit 9"))
    assert log.count("No such file") == 2
    assert "\nfile" not in log


async def test_processes_of_another_project_are_out_of_sight(island: World) -> None:
    """A job sees its own processes only, and cannot signal others by their number."""
    async with island.agent():
        victim = await island.run(shell("v-0-0", "echo here; exec sleep 1000", namespace="runai-team-b"))
        await island.printed(victim, "here")
        state = json.loads((island.data / "pods" / victim.metadata.uid / "state.json").read_text())
        target = syscalls.children(state["pid"])[0]
        _, log = await island.finish(
            shell("p-0-0", f"ls -d /proc/[0-9]*; kill -9 {target} {state['pid']}; ps ax; true")
        )
        assert (await island.see(victim)).status.phase == "Running"
        assert syscalls.start_time(target)
    assert "No such process" in log
    assert "sleep 1000" not in log
    assert f"/proc/{target}" not in log.split()


async def test_uids_differ_by_project(island: World) -> None:
    """Jobs of two projects are two users of the machine, neither of them root; inside each is root."""
    async with island.agent():
        seen = [
            await island.run(shell(f"{project}-0-0", "id -u; sleep infinity", namespace=f"runai-team-{project}"))
            for project in "ab"
        ]
        for one in seen:
            assert await island.printed(one, "\n") == "0\n"
        states = [json.loads((island.data / "pods" / one.metadata.uid / "state.json").read_text()) for one in seen]
    uids = [os.stat(f"/proc/{state['pid']}").st_uid for state in states]
    assert len(set(uids)) == 2
    assert 0 not in uids


async def test_the_machine_cannot_be_changed(island: World) -> None:
    """Root inside cannot write to the system, mount, or rename the machine."""
    script = "touch /usr/x /etc/x; mount -t tmpfs x /tmp; umount /proc; hostname other; echo 1 > /proc/sys/kernel/sysrq"
    async with island.agent():
        _, log = await island.finish(shell("p-0-0", script))
    assert log.count("Read-only file system") >= 2
    for failure in ("mount: /tmp", "umount: /proc", "hostname: you must be root", "cannot create /proc/sys"):
        assert failure in log


async def test_own_host_name_and_folders(island: World) -> None:
    """A pod has its name as host name, starts in /workload, and has a /tmp and a small /dev/shm of its own."""
    script = "hostname; pwd; ls -A /tmp /workload; df -k /dev/shm | tail -1; getent hosts p-0-0"
    async with island.agent():
        _, log = await island.finish(shell("p-0-0", script))
    name, cwd, *_, shm, host = log.splitlines()
    assert (name, cwd) == ("p-0-0", "/workload")
    assert shm.split()[1] == str(64 << 10)
    assert "p-0-0" in host


async def test_large_shared_memory(island: World) -> None:
    """A pod that mounts memory at /dev/shm gets more than the usual 64 MiB."""
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    async with island.agent():
        wanted = shell("p-0-0", "df -k /dev/shm | tail -1", volumes=[volume], mounts={"shm": "/dev/shm"})
        _, log = await island.finish(wanted)
    assert log.split()[1] == str(1 << 20)


async def test_host_paths_are_refused(island: World, tmp_path: Path) -> None:
    """A path of the machine that is not on the list is not mounted, and the pod says why."""
    volume = {"name": "v", "hostPath": {"path": str(tmp_path)}}
    async with island.agent():
        wanted = await island.create(shell("p-0-0", "true", volumes=[volume], mounts={"v": "/mnt"}))
        ended = await island.phase(wanted, "Failed", "Succeeded")
    assert ended.status.reason == "FailedMount"
    assert str(tmp_path) in ended.status.message


async def test_host_paths_are_allowed(island: World, tmp_path: Path) -> None:
    """A path on the list is mounted; the data folder inside it is not shown."""
    secrets(island)
    publish(tmp_path)
    island.host_paths = (str(tmp_path),)
    volume = {"name": "v", "hostPath": {"path": str(tmp_path)}}
    async with island.agent():
        wanted = shell("p-0-0", "cat /mnt/data.txt; ls -A /mnt/data", volumes=[volume], mounts={"v": "/mnt"})
        ended, log = await island.finish(wanted)
    assert (code(ended), log) == (0, "public")


async def test_data_inside_a_shown_folder(island: World, tmp_path: Path) -> None:
    """Where the data folder lies inside a folder that pods see, it is empty for them."""
    secrets(island)
    publish(tmp_path)
    script = f"cat {tmp_path}/data.txt; ls -A {island.data}; cat {island.data}/admin.token"
    assignment = PodAssignment("u1", "runai-team-a", "p-0-0", "node-1", policy="Never")
    # No agent: it would end a pod that no store knows.
    await ProcessRuntime(island.data).start(Launch(assignment, 0, ("sh", "-c", script), path_dirs=(str(tmp_path),)))

    async def ended() -> bool:
        return "No such file" in read_log(island, "u1")

    await until(ended)
    log = read_log(island, "u1")
    assert log.startswith("public")
    assert "admin.token\n" not in log


def read_log(world: World, uid: str) -> str:
    return (world.data / "pods" / uid / "log").read_text()


async def test_links_do_not_widen_the_list(island: World, tmp_path: Path) -> None:
    """A link inside an allowed folder that leads out of it is refused."""
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "link").symlink_to("/etc")
    island.host_paths = (str(allowed),)
    volume = {"name": "v", "hostPath": {"path": str(allowed / "link")}}
    async with island.agent():
        wanted = await island.create(shell("p-0-0", "true", volumes=[volume], mounts={"v": "/mnt"}))
        ended = await island.phase(wanted, "Failed", "Succeeded")
    assert ended.status.reason == "FailedMount"


async def test_memory_limit(island: World) -> None:
    """A job that takes more memory than its limit is ended, and its pod says why."""
    async with island.agent() as runtime:
        if os.environ.get("CI") != "true" and "limits hold" not in runtime.isolation:
            pytest.skip("needs control groups that may be written")
        hog = "x = bytearray(300 << 20); print(len(x))"
        ended, _ = await island.finish(pod("p-0-0", "python3", "-c", hog, image="python", limits={"memory": "64Mi"}))
    assert (code(ended), ended.status.container_statuses[0].state.terminated.reason) == (137, "OOMKilled")


async def test_commands_inside_are_as_shut_in(island: World) -> None:
    """A command that is run inside a pod has the pod's root, processes and rights, and no more."""
    secrets(island)
    async with island.agent() as runtime:
        seen = await island.run(pod("p-0-0", "sleep", "1000"))
        script = f"id -u; hostname; pwd; cat {island.data}/admin.token; ls -d /proc/[0-9]* | wc -l; touch /usr/x"
        session = await runtime.exec(seen, ["sh", "-c", script], tty=False, size=TerminalSize())
        out = b"".join([data async for _, data in session.output()]).decode()
        await session.close()
    assert out.startswith("0\np-0-0\n/workload\n")
    assert "secret" not in out
    assert "No such file" in out
    assert "Read-only" in out
