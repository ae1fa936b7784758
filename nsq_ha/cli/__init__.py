"""The command ``nsq-ha``: arguments and output over the public API.

Exit codes: 0 success; 1 failure, or an unwanted outcome (each command's help says
when); 2 wrong usage; 130 interrupted (143 by SIGTERM).
"""
