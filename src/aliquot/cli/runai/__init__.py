"""The researchers' words: `runai submit`, `list`, `get`, `logs`, `bash`, `delete` and the rest of the classic grammar.

    words      how a command line is read before click sees it
    program    the outermost group and the command classes that use it
    flags      every flag of `submit`, as a table; spec and mounts turn what was given into a workload
    scope      which project is meant, and which jobs and pods are in it
    state      what the classic columns say of a workload; pure
    terminal   the user's own terminal, while a command runs in a pod

The other modules are the commands.
"""
