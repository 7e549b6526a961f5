"""`up`, `serve` and `down`: start the server in the foreground, and stop the server of this machine.

`up` writes its process id and start time to server.json in the data folder. `down` signals that process only if its
start time still matches, because the system reuses process ids.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import time
from pathlib import Path
from typing import Any

import click

from aliquot.cli.context import CommandContext, command_context
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.errors import Denied, PlatformError, Unavailable
from aliquot.folder import DataFolder, RunningServer, running_server

PORT = 7520
_POLL_S = 0.05
_QUIET_S = 2.0


@click.command(cls=GlobalOptionsCommand, visible_globals=("--data-dir",))
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 for any free one."
)
@click.option(
    "--listen-anywhere", is_flag=True, help="Allow an address that other machines can reach, although there is no TLS."
)
@click.option(
    "--simulate",
    metavar="PRESET|FILE",
    help="Simulate nodes and GPUs: demo, laptop, empty or a file; else this machine's GPUs, or demo where it has none.",
)
@click.option(
    "--allow-host-path",
    "host_paths",
    multiple=True,
    metavar="DIR",
    help="Folder of this machine that jobs may mount; repeatable. Without it jobs may mount none.",
)
@click.option(
    "--gpu-overrun",
    type=click.Choice(["kill-process", "warn", "evict"]),
    default="kill-process",
    show_default=True,
    help="Action when a job bypasses the sharing library and uses more GPU memory than its fraction.",
)
@click.option(
    "--gpu-reserve-mib",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="MIB",
    help="Memory of each GPU that no fraction gets; 64 helps jobs that use all memory of their fraction.",
)
@click.option(
    "--gpu-compute",
    type=click.Choice(["timesharing", "fair", "strict"]),
    default="timesharing",
    show_default=True,
    help="How fractions of a GPU share its compute time, unless the job sets it.",
)
@click.option("--gpu-mps", is_flag=True, help="Allow jobs to use NVIDIA MPS (--mps); they are refused otherwise.")
@click.option("--api-only", is_flag=True, help="Run the API only: no job is scheduled or run.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Run the platform on the Kubernetes cluster of this kubeconfig.",
)
@click.option("--context", metavar="NAME", help="Context of the kubeconfig; its current one.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Log format."
)
@click.option(
    "--log-level",
    "--loglevel",
    type=click.Choice(["debug", "info", "warn", "error"]),
    default="info",
    show_default=True,
    help="Log level.",
)
def up(
    host: str,
    port: int,
    listen_anywhere: bool,
    simulate: str | None,
    host_paths: tuple[str, ...],
    gpu_overrun: str,
    gpu_reserve_mib: int,
    gpu_compute: str,
    gpu_mps: bool,
    api_only: bool,
    kubeconfig: Path | None,
    context: str | None,
    log_format: str,
    log_level: str,
) -> None:
    """Run the platform on this machine, in the foreground, until Ctrl-C.

    Ctrl-C does not stop the jobs; the next `up` takes them over. `aliquot down` stops the platform and its jobs.
    """
    if context and not kubeconfig:
        raise click.UsageError("--context needs --kubeconfig")
    check_host(host, listen_anywhere)
    from aliquot.backends.kubernetes.settings import ClusterSettings
    from aliquot.backends.local.devices.memory_audit import OverrunPolicy
    from aliquot.backends.local.gpu_settings import GpuSettings
    from aliquot.gpu.fractions import ComputeMode
    from aliquot.serve import API_ONLY, PARTS, Options, serve

    options = Options(
        data_dir=command_context().data_dir,
        host=host,
        port=port,
        parts=frozenset(API_ONLY if api_only else PARTS),
        simulate=simulate,
        host_paths=host_paths,
        gpu=GpuSettings(OverrunPolicy(gpu_overrun), gpu_reserve_mib, ComputeMode(gpu_compute), gpu_mps),
        cluster=ClusterSettings(kubeconfig, context or "") if kubeconfig else None,
        log_format=log_format,
        log_level=log_level,
    )
    serve(options)


class Parts(click.ParamType[frozenset[str]]):
    name = "parts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[str]:
        from aliquot.serve import PARTS

        parts = frozenset(part.strip() for part in str(value).split(","))
        if unknown := sorted(parts - set(PARTS)):
            self.fail(f"{unknown[0]!r} is no part; they are {', '.join(PARTS)}", param, ctx)
        return parts


@click.command(cls=GlobalOptionsCommand, visible_globals=("--data-dir",))
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Kubeconfig of the cluster; else KUBECONFIG, ~/.kube/config or the pod's service account.",
)
@click.option("--context", default="", metavar="NAME", help="Context of the kubeconfig; its current one.")
@click.option(
    "--parts",
    type=Parts(),
    default="server,loops,scheduler",
    show_default=True,
    help="Parts that this process runs. Each part can run in a process of its own, with several replicas.",
)
@click.option(
    "--node-loss",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="How long a node may not respond before its jobs move to other nodes.",
)
@click.option(
    "--webhook-url",
    default="",
    metavar="URL",
    help="Address of our webhook for the API server, if this process runs outside of the cluster: https://HOST:PORT.",
)
@click.option(
    "--webhook-port",
    default=0,
    type=click.IntRange(0, 65535),
    help="Port that the webhook listens on; else the port of its URL, or 9443 in the cluster.",
)
@click.option(
    "--image", default="", metavar="IMAGE", help="Image of our own pods, which reserve shared GPUs and prepare nodes."
)
@click.option(
    "--runtime-class",
    default="",
    metavar="NAME",
    help="Runtime class of pods that use GPUs, if NVIDIA's runtime is not the default.",
)
@click.option("--no-node-files", is_flag=True, help="Do not install the sharing library on nodes.")
@click.option("--api-address", default="", metavar="URL", help="Address of the API server in issued kubeconfigs.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 for any free one."
)
@click.option(
    "--listen-anywhere", is_flag=True, help="Allow an address that other machines can reach, although there is no TLS."
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="json", show_default=True, help="Log format."
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warn", "error"]), default="info", show_default=True,
    help="Log level.",
)  # fmt: skip
def serve(
    kubeconfig: Path | None,
    context: str,
    parts: frozenset[str],
    node_loss: float,
    webhook_url: str,
    webhook_port: int,
    image: str,
    runtime_class: str,
    no_node_files: bool,
    api_address: str,
    host: str,
    port: int,
    listen_anywhere: bool,
    log_format: str,
    log_level: str,
) -> None:
    """Run the platform on a Kubernetes cluster: inside of it, or outside with --kubeconfig.

    Any number of replicas may run. All of them serve requests. One replica is the leader that schedules, and one runs
    the controllers; when a leader fails, another replica takes over within seconds.
    """
    check_host(host, listen_anywhere)
    from aliquot.backends.kubernetes.settings import IMAGE, ClusterSettings, GpuSharingSettings
    from aliquot.serve import Options
    from aliquot.serve import serve as run

    run(
        Options(
            data_dir=command_context().data_dir,
            host=host,
            port=port,
            parts=parts,
            cluster=ClusterSettings(
                kubeconfig,
                context,
                api_address=api_address,
                node_loss=node_loss,
                webhook_url=webhook_url,
                webhook_port=webhook_port,
                node_files=not no_node_files,
                sharing=GpuSharingSettings(image=image or IMAGE, runtime_class=runtime_class),
            ),
            log_format=log_format,
            log_level=log_level,
        )
    )


def check_host(host: str, consent: bool) -> None:
    """Refuse an address that other machines can reach, unless the user consents: tokens would travel unencrypted."""
    if consent or _is_loopback(host):
        return
    raise Denied(
        f"{host} can be reached from other machines, and there is no TLS",
        hint="keep 127.0.0.1 behind a proxy with TLS, or add --listen-anywhere if the network is yours alone",
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@click.command(cls=GlobalOptionsCommand, visible_globals=("--data-dir",))
@click.option(
    "--timeout", default=90, show_default=True, type=click.IntRange(1), help="Seconds to wait until it has stopped."
)
@click.option("--keep-jobs", is_flag=True, help="Keep the jobs running, as Ctrl-C does; the next `up` takes them over.")
def down(timeout: int, keep_jobs: bool) -> int:
    """Stop the platform of this machine and its jobs, and wait until they have stopped.

    Submitted jobs are kept: the next `up` queues and starts them again.
    """
    context = command_context()
    server = running_server(context.data_dir)
    if server is None or not server.alive:
        click.echo(f"no server is running for {context.data_dir}")
        return 0
    DataFolder(context.data_dir).stop_jobs(not keep_jobs)
    stop(context, server, timeout)
    click.echo(f"server stopped (pid {server.pid}, {server.url})")
    return 0


def stop(context: CommandContext, server: RunningServer, timeout: float) -> None:
    try:
        os.kill(server.pid, signal.SIGTERM)
    except ProcessLookupError:
        return  # it ended in the meantime
    except PermissionError as exc:
        raise Denied(f"process {server.pid} is not yours to stop", hint="ask its owner, or use sudo") from exc
    except OSError as exc:
        raise PlatformError(f"cannot stop process {server.pid}: {exc.strerror}") from exc
    since, notified = time.monotonic(), False
    while server.alive and not _is_zombie(server.pid):
        waited = time.monotonic() - since
        if waited > timeout:
            raise Unavailable(f"server {server.pid} has not ended after {timeout:g} s", hint="see its log")
        if waited > _QUIET_S and not notified:
            notified = True
            context.note(f"waiting for server {server.pid} to end")
        time.sleep(_POLL_S)


def _is_zombie(pid: int) -> bool:
    """Whether the process has ended and only its parent has not collected it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
