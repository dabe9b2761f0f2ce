"""What is left of a conversation after it was compacted: `python -m bench.memory`.

Generated coding conversations hold planted facts. Each is compacted by every entrance and every rung of the ladder, and
every fact is looked for where the model reads next: word for word, or behind an id that is named there.
"""
