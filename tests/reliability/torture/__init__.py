"""The attack campaign: kills, faults, fuzzing and hostile surroundings. `python -m torture --help` lists the parts."""
