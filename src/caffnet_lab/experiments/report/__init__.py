"""From records to the paper's tables and figures. Reads JSON only: no torch, no models.

published   the numbers of the paper
groups      records of one method and one setting, over seeds
tables      the three tables, beside the paper's, and the optimality gap per seed
claims      what the paper says, judged by the records
aims        what this library aims at, judged likewise
yardsticks  tables of the yardsticks, beside yardstick_numbers; yardstick_figures draws them
null_space  runs with and without w
formats     a table as Markdown, LaTeX, CSV or HTML
figures     the figures, as matplotlib draws them
page        everything in one self-contained HTML file
"""

from caffnet_lab.experiments.report.write import write_report

__all__ = ["write_report"]
