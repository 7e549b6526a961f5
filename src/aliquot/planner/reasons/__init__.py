"""Why a job waits and what would let it run, as facts and as sentences.

`refusals` turns the obstacles that a cycle recorded into refusals. `what_if` tries changes that would let a job run.
`format` writes amounts and times. Nothing here decides anything.
"""
