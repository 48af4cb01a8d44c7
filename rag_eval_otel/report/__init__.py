"""A file of scores as one page for people: distributions, time lines, worst turns, coverage, cost.

From the file to the page: `collect` keeps what is drawn, `figures` and `marks` make numbers of it,
`charts` draws them, `sections` puts words to them, and `page` binds it all.
"""
