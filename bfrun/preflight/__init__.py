"""The pre-flight: can a job run on these hosts?"""
