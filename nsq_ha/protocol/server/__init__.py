"""The server's side of the protocol: how nsqd reads commands, judges them and words its refusals."""
