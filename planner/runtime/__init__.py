"""Run plans: runners and trainers on threads, in processes, and on ranks of several hosts."""
