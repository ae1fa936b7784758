"""The server's side of the protocol: how nsqd reads commands, checks them and words its refusals."""
