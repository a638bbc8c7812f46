"""Upload sessions in this server: their service and listener, whose they are, their tools."""
