"""Give a real and an embedded cluster the same random commands, and compare them."""
