//! The agent's side of other hosts: it listens, dials, and keeps one session with each.
//!
//! A connection is a guest until it has proved to belong to the cluster and has said its hello. Guests have
//! little time and little memory, and there are few of them: the oldest makes room for a new one.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use rustix::io::Errno;

use super::Node;
use super::far::agent_proc;
use super::peer::Way;
use crate::id::SYSTEM_BOX;
use crate::link::address::{Address, AddressError, accept};
use crate::link::lanes::Arrival;
use crate::link::session::{Hello, Pulse, bye};
use crate::link::tls::{Cipher, Identity, KeyError, TlsError};
use crate::link::trunk::{Transport, TransportError, Trunk};
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
pub(super) struct Hosts {
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
pub(super) fn obituary_of(host: &str, why: &str) -> String {
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
    pub(super) fn trunk_to(&self, agent: u64, address: &str) -> Result<Arc<Trunk>, String> {
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

    // -- connections ---------------------------------------------------------------------------------------

    fn try_dial(&self, hosts: &mut Hosts, id: u64, outcomes: &mut Vec<Outcome>) {
        let identity = hosts.identity.clone();
        let Some(dial) = hosts.dials.get_mut(&id) else { return };
        let begun = dial.address.connect().and_then(|socket| {
            let cipher = match (&dial.address, identity) {
                (Address::Tcp(_), Some(identity)) => Cipher::dial(&identity).ok(),
                _ => Some(Cipher::Plain),
            };
            let cipher = cipher.ok_or(AddressError::Io(Errno::INVAL))?;
            Ok(Transport::new(self.fresh(), socket, cipher, Arc::clone(&self.poller), true)?)
        });
        match begun {
            Ok(transport) => {
                let key = transport.key;
                dial.guest = Some(key);
                let from = dial.address.to_string();
                let until = Instant::now() + GUEST_TIME;
                let guest = Guest {
                    transport,
                    plain: Vec::new(),
                    from,
                    until,
                    dial: Some(id),
                    is_connecting: true,
                    has_said_hello: false,
                };
                hosts.guests.insert(key, guest);
            }
            Err(error) => hosts.dial_failed(id, "unreachable", error.to_string(), outcomes),
        }
    }

    /// Something has happened at a descriptor that is none of the links.
    pub(super) fn host_ready(&self, key: u64, readable: bool, writable: bool) {
        let mut outcomes = Vec::new();
        {
            let mut hosts = lock(&self.hosts);
            if let Some(trunk) = hosts.carried.get(&key).cloned() {
                if writable {
                    trunk.flush();
                }
                if readable {
                    hosts.read_trunk(key, trunk, &mut outcomes);
                }
            } else if let Some(guest) = hosts.guests.remove(&key) {
                self.serve_guest(&mut hosts, key, guest, &mut outcomes);
            } else if let Some((socket, address)) = hosts.listeners.get(&key).cloned() {
                self.accept_all(&mut hosts, &socket, &address, &mut outcomes);
            }
        }
        self.settle(outcomes);
    }

    fn accept_all(
        &self,
        hosts: &mut Hosts,
        socket: &OwnedFd,
        address: &Address,
        outcomes: &mut Vec<Outcome>,
    ) {
        loop {
            let (socket, from) = match accept(socket, address) {
                Ok(accepted) => accepted,
                Err(AddressError::Io(Errno::AGAIN)) => return,
                Err(AddressError::Io(Errno::CONNABORTED | Errno::INTR)) => continue,
                Err(error) => {
                    outcomes.push(Outcome::Refused(address.to_string(), error.to_string()));
                    return;
                }
            };
            let cipher = match (address, &hosts.identity) {
                (Address::Tcp(_), Some(identity)) => Cipher::accept(identity).ok(),
                (Address::Tcp(_), None) => None,
                (Address::Unix(_), _) => Some(Cipher::Plain),
            };
            let Some(cipher) = cipher else { continue };
            let key = self.fresh();
            let Ok(transport) = Transport::new(key, socket, cipher, Arc::clone(&self.poller), false) else {
                continue;
            };
            while hosts.order.len() >= MAX_GUESTS {
                let oldest = hosts.order.pop_front();
                if let Some(guest) = oldest.and_then(|key| hosts.guests.remove(&key)) {
                    let why = format!("{MAX_GUESTS} newer connections have not said who they are either");
                    outcomes.push(Outcome::Refused(guest.from, why));
                }
            }
            hosts.order.push_back(key);
            let until = Instant::now() + GUEST_TIME;
            let guest = Guest {
                transport,
                plain: Vec::new(),
                from,
                until,
                dial: None,
                is_connecting: false,
                has_said_hello: false,
            };
            hosts.guests.insert(key, guest);
        }
    }

    fn serve_guest(&self, hosts: &mut Hosts, key: u64, mut guest: Guest, outcomes: &mut Vec<Outcome>) {
        if guest.is_connecting {
            if let Err(error) = guest.transport.check_connected() {
                let kind = if error == Errno::CONNREFUSED { "refused" } else { "unreachable" };
                let text = std::io::Error::from(error).to_string();
                return hosts.guest_failed(guest, kind, text, outcomes);
            }
            guest.is_connecting = false;
            guest.transport.write(&[]);
        }
        guest.transport.flush();
        let end = guest.transport.read(GUEST_BYTES, &mut guest.plain);
        if let Some(dial) = guest.dial.and_then(|id| hosts.dials.get(&id))
            && guest.transport.is_ready()
            && !guest.has_said_hello
        {
            guest.has_said_hello = true;
            let mut hello = dial.trunk.hello(self.me.mesh, &hosts.name);
            hello.epoch += 1;
            let mut bytes = Vec::new();
            hello.encode(&mut bytes);
            guest.transport.write(&bytes);
        }
        match Hello::decode(&guest.plain) {
            Ok(Some((hello, used))) => {
                hosts.order.retain(|other| *other != key);
                let rest = guest.plain.split_off(used);
                return match guest.dial {
                    Some(id) => hosts.welcomed(id, guest, &hello, &rest, outcomes),
                    None => self.admit(hosts, guest, &hello, &rest, outcomes),
                };
            }
            Ok(None) => {}
            Err(error) => return hosts.guest_failed(guest, "protocol", error.to_string(), outcomes),
        }
        match end {
            Ok(()) if guest.plain.len() > GUEST_BYTES => {
                hosts.guest_failed(guest, "protocol", "it says too much before its hello".into(), outcomes);
            }
            Ok(()) => {
                hosts.guests.insert(key, guest);
            }
            Err(TransportError::Tls(error @ TlsError::Stranger(_))) => {
                hosts.guest_failed(guest, "stranger", error.to_string(), outcomes);
            }
            Err(error) => hosts.guest_failed(guest, "broken", error.to_string(), outcomes),
        }
    }

    /// Another host has dialled and said its hello.
    fn admit(
        &self,
        hosts: &mut Hosts,
        mut guest: Guest,
        hello: &Hello,
        rest: &[u8],
        outcomes: &mut Vec<Outcome>,
    ) {
        let me = self.me.mesh;
        let known = hosts.trunks.get(&hello.agent).cloned();
        let trunk = if hello.resumes {
            let same = known.filter(|trunk| {
                trunk.session.load(SeqCst) == hello.session && trunk.epoch.load(SeqCst) < hello.epoch
            });
            let Some(trunk) = same else {
                let why = hosts.gone.get(&hello.session).cloned();
                let why = why.unwrap_or_else(|| "it is not known here".to_owned());
                let text = format!("has written this session off: {why}");
                guest.transport.write(&bye(&text));
                guest.transport.finish();
                return outcomes.push(Outcome::Refused(guest.from, format!("a late return: {why}")));
            };
            trunk
        } else {
            match known {
                Some(trunk) if trunk.is_up() || (!trunk.has_been_up.load(SeqCst) && me < hello.agent) => {
                    guest.transport.write(&bye(&format!("{KNOWN}{me:x}")));
                    guest.transport.finish();
                    return;
                }
                Some(trunk) if !trunk.has_been_up.load(SeqCst) => {
                    // Both have dialled at once; ours is given up, what waits goes over theirs.
                    hosts.stop_dialling(&trunk, outcomes);
                    trunk.session.store(hello.session, SeqCst);
                    trunk
                }
                before => {
                    if let Some(before) = before {
                        hosts.end(&before, "has begun anew", None, outcomes);
                    }
                    Trunk::new(
                        hello.agent,
                        hello.session,
                        &hello.name,
                        hosts.pulse,
                        Arc::clone(&self.pool),
                    )
                }
            }
        };
        let mut answer = trunk.hello(me, &hosts.name);
        (answer.epoch, answer.resumes) = (hello.epoch, hello.resumes);
        let mut bytes = Vec::new();
        answer.encode(&mut bytes);
        guest.transport.write(&bytes);
        hosts.carry(&trunk, guest.transport, hello, rest, outcomes);
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

    pub(super) fn hosts_tick(&self, now: Instant) {
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

    pub(super) fn hosts_timer(&self) -> Option<Instant> {
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

impl Hosts {
    fn start_dial(&mut self, id: u64, address: Address, trunk: Arc<Trunk>, requests: Vec<u64>) {
        let now = Instant::now();
        let dial = Dial {
            address,
            trunk,
            requests,
            deadline: now + self.patience,
            next_try: now,
            pause: RETRY,
            guest: None,
            last_error: String::new(),
        };
        self.dials.insert(id, dial);
    }

    fn guest_failed(&mut self, guest: Guest, kind: &'static str, why: String, outcomes: &mut Vec<Outcome>) {
        self.order.retain(|other| *other != guest.transport.key);
        match guest.dial {
            Some(id) => self.dial_failed(id, kind, why, outcomes),
            None => outcomes.push(Outcome::Refused(guest.from, why)),
        }
    }

    fn dial_failed(&mut self, id: u64, kind: &'static str, why: String, outcomes: &mut Vec<Outcome>) {
        let now = Instant::now();
        let Some(dial) = self.dials.get_mut(&id) else { return };
        dial.guest = None;
        let known = why.strip_prefix(KNOWN).and_then(|agent| u64::from_str_radix(agent, 16).ok());
        if let Some(trunk) = known.and_then(|agent| self.trunks.get(&agent)).cloned() {
            // They have a session with us already, or are about to dial us.
            let Some(dial) = self.dials.remove(&id) else { return };
            if trunk.is_up() {
                outcomes.push(Outcome::Dialled(dial.requests, trunk));
            } else {
                outcomes.push(Outcome::Failed(dial.requests, "broken", "it dials at the same time".into()));
            }
            return;
        }
        let is_final = kind == "stranger" || (kind == "protocol" && known.is_none());
        let has_been_up = dial.trunk.has_been_up.load(SeqCst);
        if is_final || (!has_been_up && now >= dial.deadline) {
            let trunk = Arc::clone(&dial.trunk);
            let requests = std::mem::take(&mut dial.requests);
            let address = dial.address.to_string();
            self.dials.remove(&id);
            outcomes.push(Outcome::Failed(requests, kind, why.clone()));
            let why = if has_been_up { why } else { format!("cannot be reached at {address}: {why}") };
            return self.end(&trunk, &why, None, outcomes);
        }
        dial.next_try = now + dial.pause;
        dial.pause = (dial.pause * 2).min(RETRY_MOST);
        dial.last_error = why;
    }

    /// The host that we have dialled has answered.
    fn welcomed(
        &mut self,
        id: u64,
        guest: Guest,
        hello: &Hello,
        rest: &[u8],
        outcomes: &mut Vec<Outcome>,
    ) {
        let Some(dial) = self.dials.get_mut(&id) else { return };
        dial.guest = None;
        dial.pause = RETRY;
        let trunk = Arc::clone(&dial.trunk);
        let requests = std::mem::take(&mut dial.requests);
        let expected = trunk.agent.load(SeqCst);
        if expected != 0 && expected != hello.agent {
            let why = "another host program has taken its place".to_owned();
            self.dials.remove(&id);
            outcomes.push(Outcome::Failed(requests, "broken", why.clone()));
            return self.end(&trunk, &why, None, outcomes);
        }
        trunk.set_name(&hello.name);
        self.carry(&trunk, guest.transport, hello, rest, outcomes);
        outcomes.push(Outcome::Dialled(requests, trunk));
    }

    fn carry(
        &mut self,
        trunk: &Arc<Trunk>,
        transport: Transport,
        hello: &Hello,
        rest: &[u8],
        outcomes: &mut Vec<Outcome>,
    ) {
        if let Some(before) = trunk.key() {
            self.carried.remove(&before);
        }
        self.carried.insert(transport.key, Arc::clone(trunk));
        self.trunks.insert(hello.agent, Arc::clone(trunk));
        let mut arrivals = Vec::new();
        let end = trunk.carry(transport, hello, rest, &mut arrivals);
        outcomes.push(Outcome::Up(Arc::clone(trunk)));
        outcomes.push(Outcome::Arrived(Arc::clone(trunk), arrivals));
        if let Err(error) = end {
            self.end(trunk, &error.to_string(), Some(&error.to_string()), outcomes);
        }
    }

    fn read_trunk(&mut self, key: u64, trunk: Arc<Trunk>, outcomes: &mut Vec<Outcome>) {
        let mut arrivals = Vec::new();
        let end = trunk.receive(&mut arrivals);
        outcomes.push(Outcome::Arrived(Arc::clone(&trunk), arrivals));
        match end {
            Ok(()) => {}
            Err(TransportError::Session(error)) => {
                let told = match &error {
                    crate::link::session::SessionError::Bye(_) => None,
                    nonsense => Some(nonsense.to_string()),
                };
                self.end(&trunk, &error.to_string(), told.as_deref(), outcomes);
            }
            Err(_) => {
                // The session lives on; whoever has dialled it dials again.
                self.carried.remove(&key);
                trunk.suspend(key);
                if let Some(dial) = self.dials.values_mut().find(|dial| Arc::ptr_eq(&dial.trunk, &trunk)) {
                    dial.next_try = Instant::now();
                }
            }
        }
    }

    fn stop_dialling(&mut self, trunk: &Arc<Trunk>, outcomes: &mut Vec<Outcome>) {
        let ids: Vec<u64> = self
            .dials
            .iter()
            .filter(|(_, dial)| Arc::ptr_eq(&dial.trunk, trunk))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            let Some(dial) = self.dials.remove(&id) else { continue };
            if let Some(key) = dial.guest {
                self.guests.remove(&key);
            }
            if !dial.requests.is_empty() {
                outcomes.push(Outcome::Dialled(dial.requests, Arc::clone(trunk)));
            }
        }
    }

    /// A session has ended, for good.
    fn end(&mut self, trunk: &Arc<Trunk>, why: &str, told: Option<&str>, outcomes: &mut Vec<Outcome>) {
        if trunk.is_dead() {
            return;
        }
        self.dials.retain(|_, dial| !Arc::ptr_eq(&dial.trunk, trunk));
        self.carried.retain(|_, other| !Arc::ptr_eq(other, trunk));
        self.trunks.retain(|_, other| !Arc::ptr_eq(other, trunk));
        let session = trunk.session.load(SeqCst);
        self.gone.insert(session, why.to_owned());
        self.gone_order.push_back(session);
        if self.gone_order.len() > REMEMBERED
            && let Some(oldest) = self.gone_order.pop_front()
        {
            self.gone.remove(&oldest);
        }
        trunk.die(told);
        outcomes.push(Outcome::Dead(Arc::clone(trunk), why.to_owned()));
    }
}
