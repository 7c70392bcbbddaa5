"""Plans for other tools, and their maps as plans."""

from planner.export.maps import Map, map_of, read_map
from planner.export.records import Export
from planner.export.split_spec import read_split_spec
from planner.export.targets import TARGETS, export
from planner.plans.plan import plan_by_hand

__all__ = ["TARGETS", "Export", "Map", "export", "map_of", "plan_by_hand", "read_map", "read_split_spec"]
