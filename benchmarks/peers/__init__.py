"""Our clients beside other Python clients and the Go client, on a plain upstream nsqd."""
