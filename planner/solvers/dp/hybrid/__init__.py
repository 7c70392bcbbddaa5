"""Stages that are data- and tensor-parallel: their cheapest variants, and the dynamic program over downsets."""
