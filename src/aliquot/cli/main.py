"""The three programs: `aliquot`, `runai` (the same tree, where `list`, `get` and `delete` mean jobs) and `runai-adm`.

The tree is a table, so that `--help` imports click and nothing else; a command's module loads when it runs.
"""

from __future__ import annotations

from aliquot.cli.program import CommandSpec, Program
from aliquot.cli.runai.program import RunaiProgram

_HERE = "aliquot.cli"


def _entry(place: str, help: str, hidden: bool = False) -> CommandSpec:
    module, _, attribute = place.partition(":")
    return CommandSpec(f"{_HERE}.{module}", attribute, help, hidden)


_KUBECONFIG = _entry("kubeconfigs:kubeconfig", "Issue a kubeconfig for a user of one project.")

COMMANDS = {
    "up": _entry("server:up", "Serve on this machine, in the foreground."),
    "serve": _entry("server:serve", "Serve a Kubernetes cluster, in the foreground."),
    "down": _entry("server:down", "Stop the server of this machine."),
    "status": _entry("status:status", "Say how the server is."),
    "apply": _entry("apply:apply", "Create or change objects from files."),
    "get": _entry("get:get", "List objects, or show some by name."),
    "list": _entry("get:list_", "List objects: the same as get.", hidden=True),
    "describe": _entry("describe:describe", "Show everything about one object."),
    "edit": _entry("edit:edit", "Change an object in your editor."),
    "delete": _entry("delete_and_label:delete", "Delete objects by name."),
    "label": _entry("delete_and_label:label", "Set and remove labels."),
    "project": _entry("projects:project", "Projects: create, update, delete, list, set the default."),
    "department": _entry("projects:department", "Departments: create, update, delete, list."),
    "submit": _entry("runai.submit:submit", "Submit a job."),
    "submit-dist": _entry("runai.submit:submit_dist", "Submit a distributed job."),
    "submit-mpi": _entry("runai.submit:submit_mpi", "Submit a distributed job with MPI.", hidden=True),
    "logs": _entry("runai.logs_and_exec:logs", "Print the log of a job."),
    "bash": _entry("runai.logs_and_exec:bash", "Open a shell in a job."),
    "exec": _entry("runai.logs_and_exec:exec_", "Run a command in a job."),
    "port-forward": _entry("runai.port_forward:port_forward", "Make ports of a job reachable on this machine."),
    "suspend": _entry("runai.lifecycle:suspend", "Stop jobs and keep their definition."),
    "resume": _entry("runai.lifecycle:resume", "Let suspended jobs run again."),
    "top": _entry("runai.nodes:top", "Show how full the nodes are."),
    "config": _entry("runai.config_and_templates:config", "Your own settings: the default project."),
    "template": _entry("runai.config_and_templates:template", "Templates: list, get."),
    "cluster": _entry("runai.config_and_templates:cluster", "Clusters: list.", hidden=True),
    "explain": _entry("explain:explain", "Say why a job waits, and what would let it run."),
    "simulate": _entry("simulate:simulate", "Say what the scheduler would do with a cluster in a file."),
    "replay": _entry("replay:replay", "Play a trace of jobs through the scheduler and measure it."),
    "token": _entry("tokens:token", "Access tokens: create, list, delete."),
    "kubeconfig": _KUBECONFIG,
    "whoami": _entry("about:whoami", "Say who the server takes you for."),
    "crds": _entry("about:crds", "Print our custom resources for Kubernetes."),
    "node-files": _entry("node_files:node_files", "Put the sharing library onto a node.", hidden=True),
    "completion": _entry("about:completion", "Print the completion script for your shell."),
    "version": _entry("about:version", "Print the version."),
}

# Where the classic words mean jobs; with the word of a kind after them they mean what they mean to `aliquot`.
RUNAI_COMMANDS = {
    **COMMANDS,
    "list": _entry("runai.list_jobs:list_", "List jobs, projects, nodes, templates."),
    "get": _entry("runai.describe_job:get", "Show one job."),
    "describe": _entry("runai.describe_job:describe", "Show everything about a job or a node."),
    "delete": _entry("runai.lifecycle:delete", "Delete jobs."),
}

ADMIN_COMMANDS = {
    "set": _entry("node_roles:set_", "Give nodes a role."),
    "remove": _entry("node_roles:remove", "Take a role from nodes."),
    "kubeconfig": _KUBECONFIG,
    "version": _entry("about:version", "Print the version."),
    "completion": _entry("about:completion", "Print the completion script for your shell."),
}

_ABOUT = "Share GPUs fairly between teams."

aliquot = Program(
    "aliquot", COMMANDS, help=f"{_ABOUT}\n\nStart here: `aliquot up`, then `aliquot project create NAME --gpu N`."
)
runai = RunaiProgram(
    "runai", RUNAI_COMMANDS, help=f"{_ABOUT}\n\nStart here: `runai config project NAME`, then `runai submit`."
)
runai_adm = Program("runai-adm", ADMIN_COMMANDS, help="Administer the machines that teams share.")


if __name__ == "__main__":
    aliquot()
