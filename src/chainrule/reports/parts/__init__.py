"""The measurements of a report, one module per task: runs in, systems and sections out."""
