"""The command ``nsq-ha``: arguments and output over the public API.

Exit codes: 0 success; 1 failure, or an unwanted outcome (each command's help says
when); 2 wrong usage; 3 nothing found yet, by `browse`; 130 interrupted (143 by SIGTERM).
"""

# Without `Final`: the module is loaded before Ctrl-C is handled, see __main__.
INTERRUPTED = 130
TERMINATED = 143
READER_GONE = 141
"""The exit code that a shell shows for a program that SIGPIPE ended."""
