"""`python -P -m vermilion.process MODULE START`: what `child.Child` starts."""

from vermilion.process.worker import main

main()
