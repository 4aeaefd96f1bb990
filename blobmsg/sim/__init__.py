"""The whole system on a virtual clock and network, driven by a seed.

Inside are the production cores, and of the shells what needs no thread: `ProducerPipeline` and
`Consumption` with all that they are made of. What is virtual are time, the broker as far as a
client can see it, the inner clients' surface, and the store. Nothing here decides about batches,
offsets or ownership; `checker` knows the rules of DESIGN.md and not how they are kept.
See `docs/simulation.md`.
"""
