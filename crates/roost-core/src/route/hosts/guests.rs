//! Connections that have not proved who they are, of both directions, and what becomes of them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use rustix::io::Errno;

use super::{GUEST_BYTES, GUEST_TIME, Guest, Hosts, KNOWN, MAX_GUESTS, Node, Outcome};
use crate::link::address::{Address, AddressError, accept};
use crate::link::session::{Hello, bye};
use crate::link::tls::{Cipher, TlsError};
use crate::link::trunk::{Transport, TransportError, Trunk};
use crate::lock;

impl Node {
    /// Begins an attempt to connect.
    pub(super) fn try_dial(&self, hosts: &mut Hosts, id: u64, outcomes: &mut Vec<Outcome>) {
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
    pub(in crate::route) fn host_ready(&self, key: u64, readable: bool, writable: bool) {
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
                    Trunk::new(hello.agent, hello.session, &hello.name, hosts.pulse, Arc::clone(&self.pool))
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
}
