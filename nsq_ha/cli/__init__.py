"""The command ``nsq-ha``: arguments and output over the public API.

Exit codes: 0 done; 1 failed, or the outcome is not what was asked for (each
command's help tells); 2 wrong usage; 130 interrupted before the end (143 by
SIGTERM).
"""
