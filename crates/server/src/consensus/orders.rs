//! Orders from other threads of this node to the consensus plane. Before the plane runs, only two
//! of them matter: the order to stop, and the order to prepare a stop. This module carries out none.

use epicepoch_wire::NodeId;
use tokio::sync::mpsc;

use super::error::ConsensusError;

/// An order from another thread of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Hand leadership to this voter, if this node leads.
    HandOver { to: NodeId },
    /// Hand leadership over and do not become the leader again: the node is about to stop.
    PrepareStop,
    /// End the plane.
    Stop,
}

/// Waits for the end of `bootstrap`. Returns `None` if the order to stop comes first. Keeps the order
/// to prepare a stop in `early`: the plane must carry it out before it runs. A node without a record
/// cannot lead, so orders to hand over need no action.
///
/// # Errors
/// When the bootstrap fails.
pub(super) async fn unless_stopped<T>(
    bootstrap: impl Future<Output = Result<T, ConsensusError>>,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    early: &mut Option<Order>,
) -> Result<Option<T>, ConsensusError> {
    let stopped = async {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Stop => return,
                Order::PrepareStop => *early = Some(order),
                Order::HandOver { .. } => {}
            }
        }
    };
    tokio::select! {
        restored = bootstrap => restored.map(Some),
        () = stopped => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;

    /// Runs a bootstrap that ends a moment after these orders have come. Returns whether it ended, and
    /// the order that was kept.
    async fn bootstrapped(given: &[Order]) -> (bool, Option<Order>) {
        let (sender, mut orders) = mpsc::unbounded_channel();
        for order in given {
            sender.send(*order).unwrap();
        }
        let bootstrap = async {
            for _ in 0..100 {
                yield_now().await;
            }
            Ok(())
        };
        let mut early = None;
        let ended = unless_stopped(bootstrap, &mut orders, &mut early).await;
        (ended.unwrap().is_some(), early)
    }

    #[tokio::test]
    async fn an_order_to_prepare_a_stop_outlasts_the_bootstrap() {
        let (hand_over, prepare) = (Order::HandOver { to: NodeId(2) }, Order::PrepareStop);
        assert_eq!(bootstrapped(&[]).await, (true, None));
        assert_eq!(bootstrapped(&[hand_over]).await, (true, None));
        assert_eq!(bootstrapped(&[prepare, hand_over]).await, (true, Some(prepare)));
        assert_eq!(bootstrapped(&[prepare, Order::Stop]).await, (false, Some(prepare)));
    }
}
