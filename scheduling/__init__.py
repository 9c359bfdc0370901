"""Scheduling: which jobs start, where and when."""
