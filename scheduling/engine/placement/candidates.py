"""Says what was considered when a job was placed: the best nodes for it at that moment, and how many had room."""

from heapq import nsmallest

from scheduling.engine.board.board import Board
from scheduling.engine.board.node_index import taints_and_weight
from scheduling.engine.board.shapes import Shape
from scheduling.engine.candidates import Candidate, CandidateSet
from scheduling.engine.model import RankPlacement
from scheduling.engine.placement.placement import Offer, offers

MAX_CANDIDATES = 4


def considered(board: Board, shape: Shape, ranks: tuple[RankPlacement, ...]) -> CandidateSet | None:
    """Of a placement on one node, to be asked before the board takes it; None for a gang over several nodes, whose
    nodes are no alternatives to each other."""
    chosen = ranks[0].node_id
    if any(rank.node_id != chosen for rank in ranks):
        return None
    found = list(offers(board, shape, len(ranks)))
    best = nsmallest(MAX_CANDIDATES, found, key=lambda offer: offer.cost)
    own = next((offer for offer in found if board.slots[offer.position].node.id == chosen), None)
    if own is not None and own not in best:
        best[-1:] = [own]
    candidates = [_candidate(board.slots[offer.position].node.id, offer) for offer in best]
    return CandidateSet(len(board.slots), sum(offer.alike for offer in found), tuple(candidates))


def _candidate(node_id: int, offer: Offer) -> Candidate:
    hot, misses, spoils, opened_mb, left, _ = offer.rating
    taints, weight = taints_and_weight(offer.penalty)
    return Candidate(node_id, hot, misses, spoils, opened_mb, left, offer.alike - 1, taints, weight)
