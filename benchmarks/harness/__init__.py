"""How a row is measured: sides as processes of their own, in alternation, judged by paired ratios."""
