"""Charts as Vega-Lite specifications: one module per chart, drawn to SVG or embedded in a page."""
