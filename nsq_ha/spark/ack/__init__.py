"""``delivery=ack``: messages of plain nsqds, through spool files."""
