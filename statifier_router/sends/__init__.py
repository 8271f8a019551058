"""Sends: what an execution says to the world and to its neighbours, inside its step's transaction."""

from __future__ import annotations

from statifier_router.sends.record_route import RecordRoute
from statifier_router.sends.routes import OutboxRoute, Route, RouteContext
from statifier_router.sends.sending import Sending

__all__ = ["OutboxRoute", "RecordRoute", "Route", "RouteContext", "Sending"]
