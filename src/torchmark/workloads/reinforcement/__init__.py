"""The parts of the reinforcement-learning job: its networks, its records, and how it learns."""
