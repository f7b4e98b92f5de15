"""What clients learn from and with: data sets, their split among clients, models, and cohorts trained together."""
