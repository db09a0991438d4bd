"""Churn: a job on several hosts under repeated faults, with ranks that join again."""
