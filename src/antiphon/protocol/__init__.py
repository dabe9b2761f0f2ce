"""The Responses API as data: items, tools, events, requests, errors, the lifecycle table and SSE.

Pure: no I/O, no clock, no randomness. Absent is `UNSET`, null is `None`.
"""
