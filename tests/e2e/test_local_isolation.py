"""As root: a job of one project can affect neither the platform nor other projects."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from aliquot.backends.local.runtime import Launch, PodAssignment
from aliquot.backends.local.runtimes import syscalls
from aliquot.backends.local.runtimes.process import ProcessRuntime
from aliquot.streams import TerminalSize
from support.pods.agent_harness import AgentHarness, code, command_pod, needs_root, shell
from support.waiting import eventually

pytestmark = needs_root


def secrets(harness: AgentHarness) -> None:
    harness.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("admin.token", "aliquot.db"):
        (harness.data / name).write_text("secret")
        (harness.data / name).chmod(0o644)  # even if somebody was careless


def publish(folder: Path) -> None:
    folder.chmod(0o755)
    (folder / "data.txt").write_text("public")
    (folder / "data.txt").chmod(0o644)


@pytest.mark.parametrize("name", ["admin.token", "aliquot.db"])
async def test_secrets_do_not_exist(isolated_harness: AgentHarness, name: str) -> None:
    """The token and the database do not exist for a job."""
    secrets(isolated_harness)
    async with isolated_harness.agent():
        ended, log = await isolated_harness.finish(
            shell("p-0-0", f"cat {isolated_harness.data / name} && exit 0; exit 9")
        )
    assert code(ended) == 9
    assert "No such file" in log


async def test_files_of_another_project_do_not_exist(isolated_harness: AgentHarness) -> None:
    """The folder of another project's pod does not exist for a job."""
    async with isolated_harness.agent():
        victim = await isolated_harness.run(
            shell("v-0-0", "echo mine > file; sleep infinity", namespace="runai-team-b")
        )
        folder = isolated_harness.data / "pods" / victim.metadata.uid
        _, log = await isolated_harness.finish(
            shell("p-0-0", f"ls {folder}/work {isolated_harness.data} /tmp /workload; exit 9")
        )
    assert log.count("No such file") == 2
    assert "\nfile" not in log


async def test_processes_of_another_project_are_invisible(isolated_harness: AgentHarness) -> None:
    """A job sees its own processes only, and cannot signal others by pid."""
    async with isolated_harness.agent():
        victim = await isolated_harness.run(shell("v-0-0", "echo here; exec sleep 1000", namespace="runai-team-b"))
        await isolated_harness.printed(victim, "here")
        state = json.loads((isolated_harness.data / "pods" / victim.metadata.uid / "state.json").read_text())
        target = syscalls.children(state["pid"])[0]
        _, log = await isolated_harness.finish(
            shell("p-0-0", f"ls -d /proc/[0-9]*; kill -9 {target} {state['pid']}; ps ax; true")
        )
        assert (await isolated_harness.see(victim)).status.phase == "Running"
        assert syscalls.start_time(target)
    assert "No such process" in log
    assert "sleep 1000" not in log
    assert f"/proc/{target}" not in log.split()


async def test_uids_differ_by_project(isolated_harness: AgentHarness) -> None:
    """Jobs of two projects are two users of the machine, neither of them root; inside each is root."""
    async with isolated_harness.agent():
        pods = [
            await isolated_harness.run(
                shell(f"{project}-0-0", "id -u; sleep infinity", namespace=f"runai-team-{project}")
            )
            for project in "ab"
        ]
        for pod in pods:
            assert await isolated_harness.printed(pod, "\n") == "0\n"
        states = [
            json.loads((isolated_harness.data / "pods" / pod.metadata.uid / "state.json").read_text()) for pod in pods
        ]
    uids = [os.stat(f"/proc/{state['pid']}").st_uid for state in states]
    assert len(set(uids)) == 2
    assert 0 not in uids


async def test_the_machine_cannot_be_changed(isolated_harness: AgentHarness) -> None:
    """Root inside cannot write to the system, mount, or rename the machine."""
    script = "touch /usr/x /etc/x; mount -t tmpfs x /tmp; umount /proc; hostname other; echo 1 > /proc/sys/kernel/sysrq"
    async with isolated_harness.agent():
        _, log = await isolated_harness.finish(shell("p-0-0", script))
    assert log.count("Read-only file system") >= 2
    for failure in ("mount: /tmp", "umount: /proc", "hostname: you must be root", "cannot create /proc/sys"):
        assert failure in log


async def test_own_host_name_and_folders(isolated_harness: AgentHarness) -> None:
    """A pod has its name as host name, starts in /workload, and has a /tmp and a small /dev/shm of its own."""
    script = "hostname; pwd; ls -A /tmp /workload; df -k /dev/shm | tail -1; getent hosts p-0-0"
    async with isolated_harness.agent():
        _, log = await isolated_harness.finish(shell("p-0-0", script))
    name, cwd, *_, shm, host = log.splitlines()
    assert (name, cwd) == ("p-0-0", "/workload")
    assert shm.split()[1] == str(64 << 10)
    assert "p-0-0" in host


async def test_large_shared_memory(isolated_harness: AgentHarness) -> None:
    """A pod that mounts memory at /dev/shm gets more than the usual 64 MiB."""
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    async with isolated_harness.agent():
        wanted = shell("p-0-0", "df -k /dev/shm | tail -1", volumes=[volume], mounts={"shm": "/dev/shm"})
        _, log = await isolated_harness.finish(wanted)
    assert log.split()[1] == str(1 << 20)


async def test_host_paths_are_refused(isolated_harness: AgentHarness, tmp_path: Path) -> None:
    """A path of the machine that is not allowed is not mounted, and the pod's message says why."""
    volume = {"name": "v", "hostPath": {"path": str(tmp_path)}}
    async with isolated_harness.agent():
        wanted = await isolated_harness.create(shell("p-0-0", "true", volumes=[volume], mounts={"v": "/mnt"}))
        ended = await isolated_harness.phase(wanted, "Failed", "Succeeded")
    assert ended.status.reason == "FailedMount"
    assert str(tmp_path) in ended.status.message


async def test_host_paths_are_allowed(isolated_harness: AgentHarness, tmp_path: Path) -> None:
    """An allowed path is mounted; the data folder inside it is hidden."""
    secrets(isolated_harness)
    publish(tmp_path)
    isolated_harness.host_paths = (str(tmp_path),)
    volume = {"name": "v", "hostPath": {"path": str(tmp_path)}}
    async with isolated_harness.agent():
        wanted = shell("p-0-0", "cat /mnt/data.txt; ls -A /mnt/data", volumes=[volume], mounts={"v": "/mnt"})
        ended, log = await isolated_harness.finish(wanted)
    assert (code(ended), log) == (0, "public")


async def test_data_inside_a_visible_folder(isolated_harness: AgentHarness, tmp_path: Path) -> None:
    """A data folder inside a folder that pods see is empty for them."""
    secrets(isolated_harness)
    publish(tmp_path)
    script = f"cat {tmp_path}/data.txt; ls -A {isolated_harness.data}; cat {isolated_harness.data}/admin.token"
    assignment = PodAssignment("u1", "runai-team-a", "p-0-0", "node-1", policy="Never")
    # No agent: it would end a pod that no store knows.
    await ProcessRuntime(isolated_harness.data).start(
        Launch(assignment, 0, ("sh", "-c", script), path_dirs=(str(tmp_path),))
    )

    async def ended() -> bool:
        return "No such file" in read_log(isolated_harness, "u1")

    await eventually(ended)
    log = read_log(isolated_harness, "u1")
    assert log.startswith("public")
    assert "admin.token\n" not in log


def read_log(harness: AgentHarness, uid: str) -> str:
    return (harness.data / "pods" / uid / "log").read_text()


async def test_links_out_of_an_allowed_folder(isolated_harness: AgentHarness, tmp_path: Path) -> None:
    """A link inside an allowed folder that leads out of it is refused."""
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "link").symlink_to("/etc")
    isolated_harness.host_paths = (str(allowed),)
    volume = {"name": "v", "hostPath": {"path": str(allowed / "link")}}
    async with isolated_harness.agent():
        wanted = await isolated_harness.create(shell("p-0-0", "true", volumes=[volume], mounts={"v": "/mnt"}))
        ended = await isolated_harness.phase(wanted, "Failed", "Succeeded")
    assert ended.status.reason == "FailedMount"


async def test_memory_limit(isolated_harness: AgentHarness) -> None:
    """A job that takes more memory than its limit is killed, and its pod's status says why."""
    async with isolated_harness.agent() as runtime:
        if os.environ.get("CI") != "true" and "limits hold" not in runtime.isolation:
            pytest.skip("needs control groups that may be written")
        hog = "x = bytearray(300 << 20); print(len(x))"
        ended, _ = await isolated_harness.finish(
            command_pod("p-0-0", "python3", "-c", hog, image="python", limits={"memory": "64Mi"})
        )
    terminated = ended.status.container_statuses[0].state.terminated
    assert terminated is not None
    assert (terminated.exit_code, terminated.reason) == (137, "OOMKilled")


async def test_exec_is_isolated_too(isolated_harness: AgentHarness) -> None:
    """A command that `exec` runs has the pod's root, processes and rights, and no more."""
    secrets(isolated_harness)
    async with isolated_harness.agent() as runtime:
        seen = await isolated_harness.run(command_pod("p-0-0", "sleep", "1000"))
        script = (
            f"id -u; hostname; pwd; cat {isolated_harness.data}/admin.token; ls -d /proc/[0-9]* | wc -l; touch /usr/x"
        )
        session = await runtime.exec(seen, ["sh", "-c", script], tty=False, size=TerminalSize())
        out = b"".join([data async for _, data in session.output()]).decode()
        await session.close()
    assert out.startswith("0\np-0-0\n/workload\n")
    assert "secret" not in out
    assert "No such file" in out
    assert "Read-only" in out
