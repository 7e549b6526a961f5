"""The command line: the programs `aliquot`, `runai` and `runai-adm`.

Entry point: `main.py` has the tables of commands. Each other module implements the commands that it is named after, or
is shared by several of them:

    program           the click classes of all programs: lazily loaded groups, global options, error messages
    context           the run of one command: its settings and its connection to the server; -p, -n and -A
    object_refs       objects that are named on the command line: `project team-a` or `project/team-a`
    shell_completion  completion of kinds and names in the shell
    manifests         files with objects: parsing and validation
    output            tables, JSON, YAML, ages and error messages
    runai/            the commands that researchers use

Nothing here decides or stores anything: commands call the server through `aliquot.client`. Exceptions: `up` and `serve`
start the server, and `simulate` and `replay` run `aliquot.sim` in this process.
"""
