"""Records the candidates of a placement: the best nodes for the job at that moment, and how many could hold it."""

from heapq import nsmallest

from scheduling.engine.board.board import Board
from scheduling.engine.board.node_classes import PER_HOT
from scheduling.engine.board.node_index import taints_and_weight
from scheduling.engine.board.shapes import Shape
from scheduling.engine.candidates import Candidate, CandidateSet
from scheduling.engine.model import RankPlacement
from scheduling.engine.placement.placement import Offer, offers

MAX_CANDIDATES = 4


def candidate_set(board: Board, shape: Shape, ranks: tuple[RankPlacement, ...]) -> CandidateSet | None:
    """Return the candidates of a placement on one node; call it before the board allocates the ranks.

    None for a gang over several nodes, whose nodes are no alternatives to each other.
    """
    chosen = ranks[0].node_id
    if any(rank.node_id != chosen for rank in ranks):
        return None
    node_offers = list(offers(board, shape, len(ranks)))
    best = nsmallest(MAX_CANDIDATES, node_offers, key=lambda offer: offer.cost)
    chosen_offer = next((offer for offer in node_offers if board.slots[offer.position].node.id == chosen), None)
    if chosen_offer is not None and chosen_offer not in best:
        best[-1:] = [chosen_offer]
    candidates = [_candidate(board.slots[offer.position].node.id, offer) for offer in best]
    return CandidateSet(len(board.slots), sum(offer.alike for offer in node_offers), tuple(candidates))


def _candidate(node_id: int, offer: Offer) -> Candidate:
    hot, misses, spoils, opened_mb, free_devices, _ = offer.rating
    taints, weight = taints_and_weight(offer.penalty)
    return Candidate(node_id, hot // PER_HOT, misses, spoils, opened_mb, free_devices, offer.alike - 1, taints, weight)
