"""What each fault costs on a real cluster: scenarios that print their row of the table from measurements."""
