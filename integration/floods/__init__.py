"""The kit of hostile peers: what they send is data, one idea a file, and what it costs a client is measured."""
