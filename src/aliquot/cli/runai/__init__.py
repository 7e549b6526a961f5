"""The commands of researchers, with the flags and the output of the classic `runai` program.

Entry point: the command tables in `aliquot.cli.main`. Shared by the commands:

    program        the program's outermost group and the classes of its commands
    argument_scan  parsing of the classic argument syntax, before click
    flags          the table of the flags of `submit`
    flag_values    parsing of flag values that have a syntax of their own
    workload_spec  from the flags of `submit` to a workload
    job_lookup     the project of a command, and the jobs and pods in it
    job_columns    the values of the classic columns of a job; pure
    pod_access     options and checks of the commands that connect to a pod
    terminal       the user's terminal while a command runs in a pod

The other modules are the commands themselves. Commands for any kind of object are one level up, in `aliquot.cli`.
"""
