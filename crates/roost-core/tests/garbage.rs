//! A peer that sends nonsense loses its own link, with a reason, and hurts nobody else.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use roost_core::id::{ProcId, SYSTEM_BOX};
use roost_core::mailbox::Mode;
use roost_core::route::Node;
use roost_core::wire::{Header, Kind, Status};

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn corpus(prefix: &str) -> Vec<(String, Vec<u8>)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let files = std::fs::read_dir(folder).expect("the corpus").map(|entry| entry.expect("a file").path());
    files
        .map(|path| (path.display().to_string(), std::fs::read(&path).expect("bytes")))
        .filter(|(name, _)| name.contains(prefix))
        .collect()
}

#[test]
fn nonsense_closes_the_link_that_it_came_by_and_no_other() {
    let agent = ProcId { mesh: 99, rank: 0 };
    let me = Node::new(ProcId { mesh: 1, rank: 0 }, Some(agent), 1 << 20).expect("descriptors");
    let good = Node::new(ProcId { mesh: 2, rank: 0 }, Some(agent), 1 << 20).expect("descriptors");
    for node in [&me, &good] {
        let node = Arc::clone(node);
        thread::spawn(move || node.run_backup());
    }
    let (left, right) = UnixStream::pair().expect("sockets");
    me.adopt(good.me, left.into()).expect("adopted");
    good.adopt(me.me, right.into()).expect("adopted");
    let mailbox = good.open_box(2);
    let to_good = me.target(2, vec![good.me]);
    let system = me.open_box(SYSTEM_BOX);

    let mut nonsense = corpus("refused");
    nonsense.extend(corpus("without-descriptor"));
    assert!(nonsense.len() > 8);
    for (number, (name, bytes)) in nonsense.into_iter().enumerate() {
        let bad = ProcId { mesh: 1000 + number as u64, rank: 0 };
        let (left, mut right) = UnixStream::pair().expect("sockets");
        me.adopt(bad, left.into()).expect("adopted");
        let call = me.call(&me.target(2, vec![bad]), Header::default(), &[b"are you there"], Mode::Whole);
        right.write_all(&bytes).expect("written");
        until(&name, || call.is_ready(1).then_some(()));
        let answer = call.take(0..1).pop().expect("an answer");
        assert_eq!(answer.status, Status::Dead, "{name}");
        let told = until(&name, || system.take(8, false).pop());
        assert_eq!((told.header.kind, told.header.src), (Kind::Obituary, bad));
        let reason = String::from_utf8_lossy(told.part(0)).into_owned();
        assert!(reason.starts_with("lost:the peer"), "{name}: {reason}");

        me.cast(&to_good, Header { arg: number as u64, ..Header::default() }, &[b"still here"]);
        let message = until("the good link", || mailbox.take(1, false).pop());
        assert_eq!(message.header.arg, number as u64);
    }
    assert_eq!(me.stats().links, 1);
    me.shutdown();
    good.shutdown();
}
