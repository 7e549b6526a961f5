"""The program of the image `gcr.io/run-ai-demo/quickstart`: it trains a small network on the CPU.

It prints epoch, ETA, loss, accuracy and time per step, reports its progress, saves checkpoints and resumes from the
last one. It is slow on purpose: one thread, the lowest priority and a few hundredths of a core, so that a laptop can
run a whole cluster of them. It imports nothing else of the platform, and knows only the variables that every job has:

    ALIQUOT_REPORT_FILE      where to write progress and metrics, as JSON; without it nothing is reported
    ALIQUOT_CHECKPOINT_DIR   where to save checkpoints; the working folder by default
    ALIQUOT_SAVED_FILE       the file to touch after each complete checkpoint
    ALIQUOT_PREEMPTION_FILE  why the job is preempted; exists once it is

`program.main` is the entry point, started by `python -m aliquot.quickstart`.
"""
