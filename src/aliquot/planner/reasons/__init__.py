"""Why a job waits and what would let it run, as facts and as sentences.

`refusals` turns what a cycle noted into refusals, `what_if` tries changes that would let a job run, and `format` writes
amounts and times. Nothing here decides anything.
"""
