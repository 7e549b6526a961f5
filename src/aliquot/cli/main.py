"""The three programs: `aliquot`, `runai` (its `list`, `get`, `describe` and `delete` are about jobs) and `runai-adm`.

Each program is a table of commands. `--help` imports only click; the module of a command is imported when it runs.
"""

from __future__ import annotations

from aliquot.cli.program import CommandSpec, Program
from aliquot.cli.runai.program import RunaiProgram


def _command(location: str, help: str, hidden: bool = False) -> CommandSpec:
    """`location` is "module:attribute" below `aliquot.cli`."""
    module, _, attribute = location.partition(":")
    return CommandSpec(f"aliquot.cli.{module}", attribute, help, hidden)


_KUBECONFIG = _command("kubeconfigs:kubeconfig", "Issue a kubeconfig for a user of one project.")

COMMANDS = {
    "up": _command("server:up", "Run the server on this machine, in the foreground."),
    "serve": _command("server:serve", "Run the server for a Kubernetes cluster, in the foreground."),
    "down": _command("server:down", "Stop the server of this machine and its jobs."),
    "status": _command("status:status", "Show whether the server is ready, and what it holds."),
    "apply": _command("apply:apply", "Create or change objects from files."),
    "get": _command("get:get", "List objects, or get some by name."),
    "list": _command("get:list_", "List objects: the same as get.", hidden=True),
    "describe": _command("describe:describe", "Show everything about one object."),
    "edit": _command("edit:edit", "Change an object in your editor."),
    "delete": _command("delete_and_label:delete", "Delete objects by name."),
    "label": _command("delete_and_label:label", "Set and remove labels."),
    "project": _command("projects:project", "Create, update, delete and list projects; set your default project."),
    "department": _command("projects:department", "Create, update, delete and list departments."),
    "submit": _command("runai.submit:submit", "Submit a job."),
    "submit-dist": _command("runai.submit:submit_dist", "Submit a distributed job."),
    "submit-mpi": _command("runai.submit:submit_mpi", "Submit a distributed job with MPI.", hidden=True),
    "logs": _command("runai.logs:logs", "Print the log of a job."),
    "bash": _command("runai.exec_and_bash:bash", "Open a shell in a job."),
    "exec": _command("runai.exec_and_bash:exec_", "Run a command in a job."),
    "port-forward": _command("runai.port_forward:port_forward", "Forward ports of this machine to a job."),
    "suspend": _command("runai.lifecycle:suspend", "Stop jobs and keep their definition."),
    "resume": _command("runai.lifecycle:resume", "Queue suspended jobs again."),
    "top": _command("runai.nodes:top", "Show the allocation of the nodes."),
    "config": _command("runai.config_and_templates:config", "Set your default project."),
    "template": _command("runai.config_and_templates:template", "List and show templates."),
    "cluster": _command("runai.config_and_templates:cluster", "List clusters.", hidden=True),
    "explain": _command("explain:explain", "Explain why a job is pending, and what would let it run."),
    "simulate": _command("simulate:simulate", "Run the scheduler on a cluster that is described in a file."),
    "replay": _command("replay:replay", "Run a trace of jobs through the scheduler and measure the result."),
    "token": _command("tokens:token", "Create, list and delete access tokens."),
    "kubeconfig": _KUBECONFIG,
    "whoami": _command("about:whoami", "Show your user and your roles on the server."),
    "crds": _command("about:crds", "Print the custom resource definitions for Kubernetes."),
    "node-files": _command("node_files:node_files", "Install the GPU sharing library on a node.", hidden=True),
    "completion": _command("about:completion", "Print the completion script for your shell."),
    "version": _command("about:version", "Print the version."),
}

# In `runai` these commands are about jobs. Followed by the name of a kind they do the same as in `aliquot`.
RUNAI_COMMANDS = {
    **COMMANDS,
    "list": _command("runai.list_jobs:list_", "List jobs, projects, nodes or templates."),
    "get": _command("runai.describe_job:get", "Show one job."),
    "describe": _command("runai.describe_job:describe", "Show everything about a job or a node."),
    "delete": _command("runai.lifecycle:delete", "Delete jobs."),
}

ADMIN_COMMANDS = {
    "set": _command("node_roles:set_", "Assign a role to nodes."),
    "remove": _command("node_roles:remove", "Remove a role from nodes."),
    "kubeconfig": _KUBECONFIG,
    "version": _command("about:version", "Print the version."),
    "completion": _command("about:completion", "Print the completion script for your shell."),
}

_SUMMARY = "Share GPUs fairly between teams."

aliquot = Program(
    "aliquot", COMMANDS, help=f"{_SUMMARY}\n\nStart here: `aliquot up`, then `aliquot project create NAME --gpu N`."
)
runai = RunaiProgram(
    "runai", RUNAI_COMMANDS, help=f"{_SUMMARY}\n\nStart here: `runai config project NAME`, then `runai submit`."
)
runai_adm = Program("runai-adm", ADMIN_COMMANDS, help="Administer the nodes of the cluster.")


if __name__ == "__main__":
    aliquot()
