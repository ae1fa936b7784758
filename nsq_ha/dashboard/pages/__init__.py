"""The pages of the dashboard: functions from a reading and its history to HTML."""
