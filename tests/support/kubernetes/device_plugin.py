"""A device plugin that stands in for NVIDIA's: it offers GPUs by name, and tells containers which they got.

It speaks the kubelet's protocol `v1beta1` over gRPC. Its few messages are encoded and decoded by hand, so that no
generated code is needed: a field is a key (number and wire type) and, in the types used, a number or counted bytes.

It runs in a process of its own, because gRPC's threads do not survive the forks of other tests. It is controlled by
lines:

    in     healthy NAME, unhealthy NAME; end of input ends it
    out    ready, then `given NAME,...` for each container
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import grpc

RESOURCE = "nvidia.com/gpu"
SERVICE = "v1beta1.DevicePlugin"
TIMEOUT_SECONDS = 60.0  # for the kubelet to respond; it usually does at once, but machines are busy


class DevicePlugin:
    """Offers devices to the kubelet with this plugin folder (`RealNode.plugin_folder`), until it is stopped."""

    def __init__(self, folder: Path, devices: Sequence[str], resource: str = RESOURCE) -> None:
        self.devices = list(devices)
        self.allocations: list[list[str]] = []  # the devices of each container, in order
        self._command = [sys.executable, __file__, str(folder), resource, *self.devices]
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread()
        self._ready = threading.Event()

    def start(self) -> DevicePlugin:
        """Registers with the kubelet; the node's status lists the devices soon after."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        assert self._ready.wait(TIMEOUT_SECONDS), "the kubelet does not accept the device plugin"
        return self

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            event, _, rest = line.strip().partition(" ")
            if event == "ready":
                self._ready.set()
            elif event == "given":
                self.allocations.append(rest.split(","))

    def stop(self) -> None:
        """Kills the plugin, as a crash would: the kubelet marks the devices as unhealthy."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()

    def set_health(self, device: str, healthy: bool) -> None:
        """Reports the device's health to the kubelet; pods that hold the device keep it."""
        assert self._process is not None
        assert self._process.stdin is not None
        print("healthy" if healthy else "unhealthy", device, file=self._process.stdin, flush=True)


def gpu_names(node: int, count: int) -> list[str]:
    """UUIDs in NVIDIA's format, the same in every run."""
    return [f"GPU-{node:08x}-0000-4000-8000-{index:012x}" for index in range(count)]


class _Server:
    """The plugin itself, in its own process."""

    def __init__(self, folder: Path, resource: str, devices: Sequence[str]) -> None:
        self._resource = resource
        self._folder = folder
        self._socket = folder / f"{resource.replace('/', '-')}.sock"
        self._healthy = dict.fromkeys(devices, True)
        self._watchers: list[queue.Queue[bytes | None]] = []
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(4))  # the stream of devices occupies one
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, self._methods())])
        self._server.add_insecure_port(f"unix:{self._socket}")

    def start(self) -> None:
        self._server.start()
        request = _field(1, b"v1beta1") + _field(2, self._socket.name.encode()) + _field(3, self._resource.encode())
        with grpc.insecure_channel(f"unix:{self._folder}/kubelet.sock") as kubelet:
            register = kubelet.unary_unary("/v1beta1.Registration/Register", _same, _same)
            register(request, timeout=TIMEOUT_SECONDS, wait_for_ready=True)

    def set_health(self, device: str, healthy: bool) -> None:
        with self._lock:
            self._healthy[device] = healthy
            for watcher in self._watchers:
                watcher.put(self._listed())

    # --- the protocol

    def _methods(self) -> dict[str, Any]:
        def unary(handler: Callable[[bytes, Any], bytes]) -> Any:
            return grpc.unary_unary_rpc_method_handler(handler, _same, _same)

        return {
            "GetDevicePluginOptions": unary(lambda request, context: b""),
            "PreStartContainer": unary(lambda request, context: b""),
            "GetPreferredAllocation": unary(lambda request, context: b""),
            "Allocate": unary(self._allocate),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._watch, _same, _same),
        }

    def _watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        updates: queue.Queue[bytes | None] = queue.Queue()
        with self._lock:
            updates.put(self._listed())
            self._watchers.append(updates)
        context.add_callback(lambda: updates.put(None))
        while (listed := updates.get()) is not None:
            yield listed

    def _listed(self) -> bytes:
        """ListAndWatchResponse{devices: [{ID, health}]}"""
        states = {True: b"Healthy", False: b"Unhealthy"}
        return b"".join(
            _field(1, _field(1, name.encode()) + _field(2, states[healthy])) for name, healthy in self._healthy.items()
        )

    def _allocate(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """AllocateRequest{container_requests: [{devices_ids}]} -> {container_responses: [{envs: {key, value}}]}"""
        response = b""
        for container in _fields(request, 1):
            names = [name.decode() for name in _fields(container, 1)]
            print("given", ",".join(names), flush=True)
            entry = _field(1, b"NVIDIA_VISIBLE_DEVICES") + _field(2, ",".join(names).encode())
            response += _field(1, _field(1, entry))
        return response


def _same(message: bytes) -> bytes:
    return message


def _field(number: int, data: bytes) -> bytes:
    return _number(number << 3 | 2) + _number(len(data)) + data


def _number(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def _fields(message: bytes, wanted: int) -> list[bytes]:
    """The values of a repeated field; all fields of our messages are counted bytes."""
    values, position = [], 0
    while position < len(message):
        key, position = _read_number(message, position)
        length, position = _read_number(message, position)
        if key >> 3 == wanted:
            values.append(message[position : position + length])
        position += length
    return values


def _read_number(message: bytes, position: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position


def _main(folder: str, resource: str, *devices: str) -> None:
    server = _Server(Path(folder), resource, devices)
    server.start()
    print("ready", flush=True)
    for line in sys.stdin:
        state, _, device = line.strip().partition(" ")
        server.set_health(device, state == "healthy")


if __name__ == "__main__":
    import grpc

    _main(*sys.argv[1:])
    os._exit(0)  # open streams would keep it running
