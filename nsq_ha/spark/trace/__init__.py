"""The life of every message, from trace logs: the SDK's own and the servers'.

``events`` reads lines, ``lifecycle`` follows each message through each channel,
``anomalies`` finds what is lost, repeated or out of order, ``report`` puts all
into tables, a JSON and a page. Needs the extra ``nsq_ha[spark]`` and Java.
"""
