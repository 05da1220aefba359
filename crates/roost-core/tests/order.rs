//! What one process sends to a mailbox of another arrives in the order sent, whoever reads the link.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use roost_core::id::ProcId;
use roost_core::route::Node;
use roost_core::wire::Header;

const ROUNDS: u64 = 120;
const MESSAGES: u64 = 300;

fn node(mesh: u64) -> Arc<Node> {
    let agent = ProcId { mesh: 1 << 40, rank: 0 };
    Node::new(ProcId { mesh, rank: 0 }, Some(agent), 1 << 20).expect("descriptors")
}

#[test]
fn a_new_link_is_read_in_order_while_the_poller_finds_it_readable_too() {
    let sender = node(1);
    let sending = {
        let sender = Arc::clone(&sender);
        thread::spawn(move || sender.run_backup())
    };
    // Threads that take the processors away in the middle of a delivery.
    let busy = Arc::new(AtomicBool::new(true));
    let hogs: Vec<_> = (0..4)
        .map(|_| {
            let busy = Arc::clone(&busy);
            thread::spawn(move || while busy.load(Relaxed) {})
        })
        .collect();
    for round in 0..ROUNDS {
        let receiver = node(2 + round);
        let mailbox = receiver.open_box(2);
        let target = sender.target(2, vec![receiver.me]);
        let (left, right) = UnixStream::pair().expect("sockets");
        let poller = {
            let receiver = Arc::clone(&receiver);
            thread::spawn(move || receiver.run_backup())
        };
        for number in 0..MESSAGES {
            sender.cast(&target, Header { arg: number, ..Header::default() }, &[&[0; 2000]]);
        }
        sender.adopt(receiver.me, left.into()).expect("adopted");
        receiver.adopt(sender.me, right.into()).expect("adopted");

        let mut seen = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        while (seen.len() as u64) < MESSAGES && Instant::now() < deadline {
            seen.extend(mailbox.take(64, false).iter().map(|message| message.header.arg));
            thread::yield_now();
        }
        assert_eq!(seen, (0..MESSAGES).collect::<Vec<_>>(), "round {round}");
        receiver.shutdown();
        poller.join().expect("joined");
    }
    busy.store(false, Relaxed);
    for hog in hogs {
        hog.join().expect("joined");
    }
    sender.shutdown();
    sending.join().expect("joined");
}
