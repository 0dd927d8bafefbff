"""Objectives: what training minimises, registered in `OBJECTIVES`."""
