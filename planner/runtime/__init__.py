"""What carries a plan out: runners and trainers, on threads, in processes and on ranks of other hosts."""
