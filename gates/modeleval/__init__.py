"""The evaluation of a whole model with candidates in their seats: statistics first, rules and trials on top."""
