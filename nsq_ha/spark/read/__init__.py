"""Reading one range, in a task or in the driver."""
