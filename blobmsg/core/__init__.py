"""Decisions: state machines that are told what happened and answer what to do.

No thread, socket, clock, environment or Kafka client in here; time comes in as `now_ms`
(monotonic) and `timestamp_ms` (wall), chance as a `random.Random`.
"""
