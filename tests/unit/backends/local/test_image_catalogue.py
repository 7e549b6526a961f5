"""How images run without a container engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.backends.local.image_catalogue import Catalogue, ResolvedCommand, spellings
from aliquot.errors import Invalid

QUICKSTART = (sys.executable, "-P", "-m", "aliquot.quickstart")


def bare(name: str) -> str | None:
    """A machine that has no programs."""
    return None


def resolve(image: str, *command: str, args: tuple[str, ...] = ()) -> ResolvedCommand:
    return Catalogue(which=bare).resolve(image, command, args)


@pytest.mark.parametrize(
    "image",
    [
        "gcr.io/run-ai-demo/quickstart",
        "gcr.io/run-ai-demo/quickstart:latest",
        "run-ai-demo/quickstart",
        "registry.example.com:5000/run-ai-demo/quickstart:v2",
        "gcr.io/run-ai-demo/quickstart@sha256:0123",
    ],
)
def test_quickstart_is_our_training_program(image: str) -> None:
    """The quickstart image is the training program of the platform, from whichever registry and with any tag."""
    assert resolve(image).argv == QUICKSTART


def test_arguments_follow_the_entrypoint() -> None:
    """Arguments without a command go to the image's own program."""
    assert resolve("gcr.io/run-ai-demo/quickstart", args=("--epochs", "3")).argv == (*QUICKSTART, "--epochs", "3")


def test_a_command_replaces_the_entrypoint() -> None:
    """A command is run instead of the image's own program."""
    assert resolve("gcr.io/run-ai-demo/quickstart", "sleep", args=("60",)).argv == ("sleep", "60")


@pytest.mark.parametrize(
    "image", ["python", "ubuntu:22.04", "docker.io/library/busybox", "debian", "nvcr.io/nvidia/pytorch"]
)
def test_commands_run_unmodified(image: str) -> None:
    """Plain images run the user's command unchanged."""
    command = ("sleep", "{python}", "$HOME", "--NotebookApp.x=1", "a b")

    assert resolve(image, *command).argv == command


def test_arguments_alone_are_a_command_for_images_without_a_program() -> None:
    """An image without an entrypoint runs its arguments, as containers do."""
    assert resolve("ubuntu", args=("echo", "hi")).argv == ("echo", "hi")


@pytest.mark.parametrize("image", ["python", "ubuntu", "alpine", "nvcr.io/nvidia/pytorch"])
def test_images_without_a_lasting_program_end_at_once(image: str) -> None:
    """Without a command, an image whose program waits for input ends at once."""
    argv = Catalogue().resolve(image).argv

    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)

    assert (done.returncode, done.stdout) == (0, b"")


def test_python_is_python3_where_only_that_exists() -> None:
    """`python` works in Python images on machines that only have python3."""
    only = {"python3": "/usr/bin/python3"}

    assert Catalogue(which=only.get).resolve("python", ["python", "x.py"]).argv == ("/usr/bin/python3", "x.py")


def test_programs_of_the_machine_come_first() -> None:
    """A program that the machine has is not replaced."""
    assert Catalogue(which=lambda name: f"/bin/{name}").resolve("python", ["python"]).argv == ("python",)


def test_an_unknown_image_runs_its_command() -> None:
    """An image with a command needs no catalogue entry."""
    assert resolve("example.com/mine:1", "echo", args=("1",)) == ResolvedCommand(argv=("echo", "1"))


def test_an_unknown_image_without_a_command_says_what_to_do(tmp_path: Path) -> None:
    """The error names the image and three solutions: a command, the catalogue, containers or Kubernetes."""
    file = tmp_path / "images.yaml"

    with pytest.raises(Invalid) as caught:
        Catalogue(file).resolve("example.com/mine:1", args=["--lr=1"])

    message = str(caught.value)
    assert "'example.com/mine:1'" in message
    assert all(way in message for way in ("--command", str(file), "containers or Kubernetes"))


def test_names_from_specific_to_short() -> None:
    """An image is looked up in full first, then without tag, registry and library."""
    assert spellings("docker.io/library/python:3.11") == (
        "docker.io/library/python:3.11", "docker.io/library/python", "library/python:3.11", "library/python",
        "python:3.11", "python",
    )  # fmt: skip
    assert spellings("localhost:5000/x") == ("localhost:5000/x", "x")
    assert spellings("team/train") == ("team/train",)


def notebook(*command: str, args: tuple[str, ...] = (), installed: bool = True) -> ResolvedCommand:
    return Catalogue(which=bare, installed=lambda module: installed).resolve("jupyter/base-notebook", command, args)


@pytest.mark.parametrize("command", [(), ("start-notebook.sh",), ("/usr/local/bin/start-notebook.sh",)])
def test_a_notebook_is_jupyterlab(command: tuple[str, ...]) -> None:
    """The notebook images start JupyterLab, by their own program or by its name."""
    assert notebook(*command).argv[:4] == (sys.executable, "-P", "-m", "jupyterlab")


def test_old_notebook_arguments_are_rewritten() -> None:
    """Settings of the old notebook server are translated for the current one; other arguments stay unchanged."""
    argv = notebook("start-notebook.sh", args=("--NotebookApp.base_url=test-ingress", "--port=9000")).argv

    assert argv[-2:] == ("--ServerApp.base_url=test-ingress", "--port=9000")


def test_a_notebook_without_jupyterlab_says_how_to_install_it() -> None:
    """Without the extra, a notebook image is refused with the command that installs it."""
    with pytest.raises(Invalid, match=r"needs jupyterlab, which is not installed; pip install aliquot\[notebook\]"):
        notebook(installed=False)


def test_other_commands_of_a_notebook_image_need_no_jupyterlab() -> None:
    """A shell in a notebook image needs no notebook."""
    assert notebook("bash", "-c", "true", installed=False).argv == ("bash", "-c", "true")


def test_the_built_in_catalogue_is_complete() -> None:
    """The built-in catalogue can be read, and has each of the images of the tours."""
    catalogue = Catalogue()

    for image in (
        "jupyter/base-notebook",
        "gcr.io/run-ai-demo/jupyter-tensorboard",
        "netapp/tensorflow-tf1-py3:20.01.0",
    ):
        assert catalogue.find(image) is not None, image


USERS = """
images:
  - names: [example.com/team/train]
    entrypoint: [./train.sh]
    arguments: [--fast]
    env: {MODE: "1"}
    workingDir: /srv/train
  - names: [team/train:v2]
    entrypoint: [./train2.sh]
  - names: [busybox]
    arguments: [busybox, sh]
  - names: [library-only]
"""


@pytest.fixture
def users(tmp_path: Path) -> Path:
    file = tmp_path / "images.yaml"
    file.write_text(USERS)
    return file


def test_the_users_file_adds_images(users: Path) -> None:
    """An image that the user described runs as described: program, arguments, folder and environment."""
    resolved = Catalogue(users).resolve("example.com/team/train")

    assert resolved == ResolvedCommand(argv=("./train.sh", "--fast"), cwd="/srv/train", env={"MODE": "1"})


def test_the_more_specific_name_wins(users: Path) -> None:
    """An entry for one tag is used for that tag only."""
    catalogue = Catalogue(users)

    assert catalogue.resolve("team/train:v2").argv == ("./train2.sh",)
    assert catalogue.resolve("team/train:v3").argv == ("./train.sh", "--fast")


def test_the_users_file_wins(users: Path) -> None:
    """The user's entry wins over the built-in one."""
    assert Catalogue(users).resolve("docker.io/library/busybox:1.36").argv == ("busybox", "sh")


def test_an_image_without_a_program_needs_a_command(users: Path) -> None:
    """An entry with neither entrypoint nor arguments asks for a command."""
    with pytest.raises(Invalid, match="'library-only' has no program of its own; say what to run with --command"):
        Catalogue(users).resolve("library-only")


def test_a_change_takes_effect_without_a_restart(users: Path) -> None:
    """Entries that the user adds or removes while the platform runs apply to the next job."""
    catalogue = Catalogue(users)
    users.write_text("images: [{names: [new], entrypoint: [run-me]}]")
    os.utime(users, ns=(1, 1))  # on coarse file clocks too

    assert catalogue.resolve("new").argv == ("run-me",)

    users.unlink()
    assert catalogue.find("new") is None


@pytest.mark.parametrize(
    "text, fault",
    [
        ("images: [{entrypoint: [x]}]", "images[0].names: is required"),
        ("images: [{names: []}]", "images[0].names: "),
        ("images: [{names: [a], entrypoint: x}]", "images[0].entrypoint: must be a list"),
        ("images: [{names: [a, b, a]}]", "images[0].names[2]: appears twice: 'a'"),
        ("images: [{names: ['a b']}]", "images[0].names[0]: must be an image such as"),
        ("images: [{names: [a], programs: {x: {argv: []}}}]", "images[0].programs.x.argv: "),
        ("image: []", "image: unknown field"),
    ],
)
def test_faults_in_the_users_file_name_their_position(tmp_path: Path, text: str, fault: str) -> None:
    """An invalid catalogue is refused with file and position."""
    file = tmp_path / "images.yaml"
    file.write_text(text)

    with pytest.raises(Invalid) as caught:
        Catalogue(file)

    assert str(caught.value).startswith(f"{file}: ")
    assert fault in str(caught.value)
