"""The life of every message, from trace logs: the SDK's own and the servers'.

``events`` parses lines, ``queries`` follows each message through each channel and finds lost, repeated and misordered
ones, and ``report`` writes tables, JSON and the page that ``page`` builds. Needs the extra ``nsq_ha[spark]`` and Java.
"""
