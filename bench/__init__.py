"""What Antiphon costs beside asking the model server directly: `python -m bench`.

Three processes, as in life: a fake model server, the server as users start it, and a client. Every number
stands beside the same request sent straight to the same fake, in alternating rounds.
"""
