"""The parts of a section: tables, charts, texts, heat maps and matrices. Each renders itself in all formats."""
