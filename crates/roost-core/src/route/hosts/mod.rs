//! The agent's side of other hosts: it listens, dials, and keeps one session with each.
//!
//! A connection is a guest until it has proved to belong to the cluster and has said its hello. Guests have
//! little time and little memory, and there are few of them: the oldest makes room for a new one.

mod guests;
mod register;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::Node;
use super::far::agent_proc;
use super::peer::Way;
use crate::id::SYSTEM_BOX;
use crate::link::address::{Address, AddressError};
use crate::link::lanes::Arrival;
use crate::link::session::Pulse;
use crate::link::tls::{Identity, KeyError};
use crate::link::trunk::{Transport, Trunk};
use crate::lock;
use crate::message::Message;
use crate::wire::{Header, Kind};

/// Most connections that have not proved who they are.
const MAX_GUESTS: usize = 64;
/// How long a connection may take to do so.
const GUEST_TIME: Duration = Duration::from_secs(5);
/// Most bytes that it may send before.
const GUEST_BYTES: usize = 64 << 10;
/// First and longest pause between attempts to connect.
const RETRY: Duration = Duration::from_millis(50);
const RETRY_MOST: Duration = Duration::from_millis(500);
/// Most sessions of which is remembered why they have ended.
const REMEMBERED: usize = 1024;
/// Begins the farewell to a connection that is not needed, because there is a session already.
const KNOWN: &str = "known ";

/// Why the agent cannot deal with other hosts.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// The address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// TCP without a key.
    #[error("{0} needs a cluster key")]
    NoKey(String),
}

struct Guest {
    transport: Transport,
    plain: Vec<u8>,
    from: String,
    until: Instant,
    dial: Option<u64>,
    is_connecting: bool,
    has_said_hello: bool,
}

/// An address that is, or stays, connected by us.
struct Dial {
    address: Address,
    trunk: Arc<Trunk>,
    /// Requests that wait for the first connection.
    requests: Vec<u64>,
    /// When the first connection has to be there.
    deadline: Instant,
    next_try: Instant,
    pause: Duration,
    /// The attempt under way.
    guest: Option<u64>,
    last_error: String,
}

/// Everything that an agent knows of other hosts.
#[derive(Default)]
pub(in crate::route) struct Hosts {
    name: String,
    pulse: Pulse,
    patience: Duration,
    identity: Option<Arc<Identity>>,
    listeners: FxHashMap<u64, (Arc<OwnedFd>, Address)>,
    guests: FxHashMap<u64, Guest>,
    order: VecDeque<u64>,
    carried: FxHashMap<u64, Arc<Trunk>>,
    trunks: FxHashMap<u64, Arc<Trunk>>,
    dials: FxHashMap<u64, Dial>,
    gone: FxHashMap<u64, String>,
    gone_order: VecDeque<u64>,
}

/// What has to be done without the lock.
enum Outcome {
    Arrived(Arc<Trunk>, Vec<Arrival>),
    Up(Arc<Trunk>),
    Dead(Arc<Trunk>, String),
    Dialled(Vec<u64>, Arc<Trunk>),
    Failed(Vec<u64>, &'static str, String),
    Refused(String, String),
}

/// What is said of a process whose host is gone.
pub(in crate::route) fn obituary_of(host: &str, why: &str) -> String {
    let quoted = |text: &str| {
        let mut out = String::from("\"");
        for letter in text.chars() {
            match letter {
                '"' | '\\' => out.extend(['\\', letter]),
                letter if (letter as u32) < 32 => out.push(' '),
                letter => out.push(letter),
            }
        }
        out.push('"');
        out
    };
    let why = quoted(&format!("host {host} {why}"));
    format!("{{\"pid\": 0, \"host\": {}, \"why\": {why}}}", quoted(host))
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_le_bytes(bytes) | 1
}

impl Node {
    /// Says how this host deals with others: its name for people, the patience with a peer, how long to try to
    /// connect, and the cluster's key.
    ///
    /// # Errors
    /// The text is no cluster key.
    pub fn configure_hosts(
        &self,
        name: &str,
        pulse: Pulse,
        patience: Duration,
        key: Option<&str>,
    ) -> Result<(), HostsError> {
        let identity = key.map(Identity::new).transpose()?.map(Arc::new);
        let mut hosts = lock(&self.hosts);
        name.clone_into(&mut hosts.name);
        (hosts.pulse, hosts.patience) = (pulse, patience);
        if identity.is_some() {
            hosts.identity = identity;
        }
        self.has_hosts.store(true, SeqCst);
        crate::region::keep_from_children();
        Ok(())
    }

    /// Listens for other hosts. Returns the address with the port that was chosen.
    ///
    /// # Errors
    /// The address cannot be used, or needs a key.
    pub fn listen(&self, address: &str) -> Result<String, HostsError> {
        let address = Address::parse(address)?;
        let mut hosts = lock(&self.hosts);
        if address.needs_key() && hosts.identity.is_none() {
            return Err(HostsError::NoKey(address.to_string()));
        }
        let (socket, real) = address.listen()?;
        let key = self.fresh();
        self.poller.watch(&socket, key).map_err(AddressError::Io)?;
        hosts.listeners.insert(key, (Arc::new(socket), real.clone()));
        Ok(real.to_string())
    }

    /// Connects with the host at an address; the runtime is told how that ended, under the number of the request.
    ///
    /// # Errors
    /// The address cannot be used, or needs a key.
    pub fn dial(&self, request: u64, address: &str) -> Result<(), HostsError> {
        let address = Address::parse(address)?;
        let mut outcomes = Vec::new();
        {
            let mut hosts = lock(&self.hosts);
            if address.needs_key() && hosts.identity.is_none() {
                return Err(HostsError::NoKey(address.to_string()));
            }
            let known = hosts.dials.values_mut().find(|dial| dial.address == address);
            if let Some(dial) = known {
                if dial.trunk.is_up() {
                    outcomes.push(Outcome::Dialled(vec![request], Arc::clone(&dial.trunk)));
                } else {
                    dial.requests.push(request);
                }
            } else {
                let id = self.fresh();
                let trunk =
                    Trunk::new(0, random(), &address.to_string(), hosts.pulse, Arc::clone(&self.pool));
                hosts.start_dial(id, address, trunk, vec![request]);
                self.try_dial(&mut hosts, id, &mut outcomes);
            }
        }
        self.settle(outcomes);
        Ok(())
    }

    /// The session with the host of an agent; one is begun when there is none.
    pub(in crate::route) fn trunk_to(&self, agent: u64, address: &str) -> Result<Arc<Trunk>, String> {
        let mut outcomes = Vec::new();
        let trunk = {
            let mut hosts = lock(&self.hosts);
            if let Some(trunk) = hosts.trunks.get(&agent) {
                return Ok(Arc::clone(trunk));
            }
            let address = Address::parse(address).map_err(|_| {
                format!("cannot be reached from here: it is not known where it listens ({address:?})")
            })?;
            if address.needs_key() && hosts.identity.is_none() {
                return Err("cannot be reached from here: this host has no cluster key".to_owned());
            }
            let name = address.to_string();
            let trunk = Trunk::new(agent, random(), &name, hosts.pulse, Arc::clone(&self.pool));
            hosts.trunks.insert(agent, Arc::clone(&trunk));
            let id = self.fresh();
            hosts.start_dial(id, address, Arc::clone(&trunk), Vec::new());
            self.try_dial(&mut hosts, id, &mut outcomes);
            trunk
        };
        self.peer(agent_proc(agent)).revive();
        self.peer(agent_proc(agent)).found(&Way::Trunk(Arc::clone(&trunk), Arc::clone(&self.pool)));
        self.settle(outcomes);
        Ok(trunk)
    }

    /// Says goodbye to all hosts, behind what is queued for them.
    pub fn leave_hosts(&self, reason: &str) {
        let hosts = lock(&self.hosts);
        for trunk in hosts.trunks.values() {
            trunk.leave(reason);
        }
    }

    /// Sessions with other hosts.
    #[must_use]
    pub fn count_hosts(&self) -> (usize, usize) {
        let hosts = lock(&self.hosts);
        (hosts.trunks.len(), hosts.guests.len())
    }

    /// Does what had to wait for the lock.
    fn settle(&self, outcomes: Vec<Outcome>) {
        for outcome in outcomes {
            match outcome {
                Outcome::Arrived(trunk, arrivals) => {
                    for arrival in arrivals {
                        self.arrive(&trunk, arrival);
                    }
                }
                Outcome::Up(trunk) => {
                    let peer = self.peer(agent_proc(trunk.agent.load(SeqCst)));
                    peer.revive();
                    peer.found(&Way::Trunk(trunk, Arc::clone(&self.pool)));
                }
                Outcome::Dead(trunk, why) => self.host_died(&trunk, &why),
                Outcome::Dialled(requests, trunk) => {
                    for request in requests {
                        let agent = trunk.agent.load(SeqCst);
                        let body = format!("{request}\n{agent:x}\n\n{}", trunk.name());
                        self.tell_runtime(b"dialled", &body);
                    }
                }
                Outcome::Failed(requests, kind, why) => {
                    for request in requests {
                        self.tell_runtime(b"dialled", &format!("{request}\n0\n{kind}\n{why}"));
                    }
                }
                Outcome::Refused(from, why) => self.tell_runtime(b"refused", &format!("{from}\n{why}")),
            }
        }
    }

    fn tell_runtime(&self, verb: &[u8], body: &str) {
        let header = Header {
            kind: Kind::Cast,
            src: self.me,
            dest: self.me,
            dest_box: SYSTEM_BOX,
            ..Header::default()
        };
        self.to_system(Message::of(header, &[verb, body.as_bytes()]));
    }

    pub(in crate::route) fn hosts_tick(&self, now: Instant) {
        if !self.has_hosts.load(SeqCst) {
            return;
        }
        let mut outcomes = Vec::new();
        {
            let mut hosts = lock(&self.hosts);
            let late: Vec<u64> =
                hosts.guests.iter().filter(|(_, guest)| guest.until <= now).map(|(key, _)| *key).collect();
            for key in late {
                if let Some(guest) = hosts.guests.remove(&key) {
                    let what = if guest.is_connecting { "no answer" } else { "no hello" };
                    let why = format!("{what} within {} s", GUEST_TIME.as_secs());
                    hosts.guest_failed(guest, "silent", why, &mut outcomes);
                }
            }
            let trunks: Vec<_> = hosts.trunks.values().cloned().collect();
            for trunk in trunks {
                if let Err(error) = trunk.tick(now) {
                    let told = format!("it {error}");
                    hosts.end(&trunk, &error.to_string(), Some(&told), &mut outcomes);
                }
            }
            let due: Vec<u64> = hosts
                .dials
                .iter()
                .filter(|(_, dial)| dial.guest.is_none() && dial.next_try <= now && !dial.trunk.is_up())
                .map(|(id, _)| *id)
                .collect();
            for id in due {
                self.try_dial(&mut hosts, id, &mut outcomes);
            }
        }
        self.settle(outcomes);
    }

    pub(in crate::route) fn hosts_timer(&self) -> Option<Instant> {
        if !self.has_hosts.load(SeqCst) {
            return None;
        }
        let hosts = lock(&self.hosts);
        let guests = hosts.guests.values().map(|guest| guest.until);
        let trunks = hosts.trunks.values().filter_map(|trunk| trunk.next_timer());
        let dials = hosts.dials.values().filter(|dial| dial.guest.is_none() && !dial.trunk.is_up());
        // A tick comes no sooner than 5 ms after the last.
        let due = guests.chain(trunks).chain(dials.map(|dial| dial.next_try)).min();
        due.map(|due| due + Duration::from_millis(5))
    }
}
