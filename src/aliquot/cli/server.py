"""`up` and `down`: the server on this machine, in the foreground, and its end.

`up` leaves word in the data folder (server.json); `down` reads it, and signals the process only if it is still the one
that wrote it: process numbers are used again.
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
    "--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 takes a free one."
)
@click.option("--listen-anywhere", is_flag=True, help="Allow an address that other machines reach, without TLS.")
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
    help="Folder of this machine that jobs may mount; none unless given. Repeat it for more.",
)
@click.option(
    "--gpu-overrun",
    type=click.Choice(["kill-process", "warn", "evict"]),
    default="kill-process",
    show_default=True,
    help="What is done about a job that holds more GPU memory than its part, past the sharing library.",
)
@click.option(
    "--gpu-reserve-mib",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="MIB",
    help="Memory of every GPU that is kept out of its parts; 64 helps jobs that fill theirs to the last byte.",
)
@click.option(
    "--gpu-compute",
    type=click.Choice(["timesharing", "fair", "strict"]),
    default="timesharing",
    show_default=True,
    help="How parts of a GPU share its time, unless a job says.",
)
@click.option("--gpu-mps", is_flag=True, help="Let jobs ask for NVIDIA MPS (--mps); off, they are refused.")
@click.option("--api-only", is_flag=True, help="Serve objects only: nothing is scheduled or run.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), metavar="FILE", help="Serve this Kubernetes cluster.")
@click.option("--context", metavar="NAME", help="Which context of the kubeconfig; its current one.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to log."
)
@click.option(
    "--log-level",
    "--loglevel",
    type=click.Choice(["debug", "info", "warn", "error"]),
    default="info",
    show_default=True,
    help="How much to log.",
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

    Jobs are not stopped by Ctrl-C: the next `up` finds them. `aliquot down` stops both.
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
@click.option("--kubeconfig", type=click.Path(path_type=Path), metavar="FILE", help="Of the cluster to serve.")
@click.option("--context", default="", metavar="NAME", help="Which context of the kubeconfig; its current one.")
@click.option(
    "--parts",
    type=Parts(),
    default="server,loops,scheduler",
    show_default=True,
    help="What this process does; each part may have a process of its own, and each process several replicas.",
)
@click.option(
    "--node-loss",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="How long a node may be NotReady and silent before its jobs go on elsewhere.",
)
@click.option(
    "--webhook-url",
    default="",
    metavar="URL",
    help="Where the API server reaches our webhook, if this runs outside of the cluster: https://HOST:PORT.",
)
@click.option(
    "--webhook-port",
    default=0,
    type=click.IntRange(0, 65535),
    help="Port that the webhook listens on; else that of its URL, 9443 in the cluster.",
)
@click.option("--image", default="", metavar="IMAGE", help="Of our own pods: they hold shared GPUs, and prepare nodes.")
@click.option(
    "--runtime-class", default="", metavar="NAME", help="Of pods that use GPUs, where NVIDIA's is not the default."
)
@click.option("--no-node-files", is_flag=True, help="Put no sharing library on nodes: somebody else does.")
@click.option("--api-address", default="", metavar="URL", help="Of the API server, in kubeconfigs that are issued.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 takes a free one."
)
@click.option("--listen-anywhere", is_flag=True, help="Allow an address that other machines reach, without TLS.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="json", show_default=True, help="How to log."
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warn", "error"]), default="info", show_default=True,
    help="How much to log.",
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
    """Run the platform on a Kubernetes cluster: in it, or beside it with --kubeconfig.

    Any number of replicas may run. All of them answer; of those that schedule, and of those that run the loops, one
    leads, and another takes over within seconds when it is gone.
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
    """Only this machine may connect, unless the user said otherwise: tokens would travel unencrypted."""
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
@click.option("--timeout", default=90, show_default=True, type=click.IntRange(1), help="Seconds to wait for the end.")
@click.option("--keep-jobs", is_flag=True, help="Leave jobs running, as Ctrl-C does; the next `up` finds them.")
def down(timeout: int, keep_jobs: bool) -> int:
    """Stop the platform of this machine and its jobs, and wait until they have ended.

    What was submitted stays: the next `up` queues it again, and starts it anew.
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
        return  # it ended by itself just now
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
    """Ended, but its parent has not looked yet: nothing of it runs any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
