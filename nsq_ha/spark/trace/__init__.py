"""The life of every message, from trace logs: the SDK's own and the servers'.

``events`` parses lines, ``lifecycle`` follows each message through each channel,
``anomalies`` finds lost, repeated and misordered messages, and ``report`` writes tables,
JSON and a page. Needs the extra ``nsq_ha[spark]`` and Java.
"""
