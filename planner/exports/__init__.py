"""Plans for other tools, and their maps as plans."""

from planner.exports.maps import Map, map_of, read_map
from planner.exports.split_spec import read_split_spec
from planner.exports.targets import TARGETS, export
from planner.plans.exported import Export
from planner.plans.plan import plan_by_hand

__all__ = ["TARGETS", "Export", "Map", "export", "map_of", "plan_by_hand", "read_map", "read_split_spec"]
