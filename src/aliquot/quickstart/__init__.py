"""The program of the image `gcr.io/run-ai-demo/quickstart`: a small network that really learns.

It prints epoch, ETA, loss, accuracy and time per step, reports its progress, keeps checkpoints and goes on from the
last one. It is slow on purpose: one thread, the lowest priority and a few hundredths of a core, so that a laptop runs
a cluster full of them. It knows nothing of the platform but the variables every job may read:

    ALIQUOT_REPORT_FILE      where to write progress and metrics, as JSON; nowhere unless given
    ALIQUOT_CHECKPOINT_DIR   where checkpoints are kept; the folder it starts in unless given
    ALIQUOT_SAVED_FILE       to be touched when a checkpoint is whole
    ALIQUOT_PREEMPTION_FILE  why it is stopped for others, when it is
"""
