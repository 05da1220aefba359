//! The register of sessions and of addresses that are dialled. Changes only the register; what follows for the
//! rest of the node comes back as outcomes.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use super::{Dial, Guest, Hosts, KNOWN, Outcome, REMEMBERED, RETRY, RETRY_MOST};
use crate::link::address::Address;

use crate::link::session::{Hello, SessionError};
use crate::link::trunk::{Transport, TransportError, Trunk};

impl Hosts {
    pub(super) fn start_dial(&mut self, id: u64, address: Address, trunk: Arc<Trunk>, requests: Vec<u64>) {
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

    pub(super) fn guest_failed(
        &mut self,
        guest: Guest,
        kind: &'static str,
        why: String,
        outcomes: &mut Vec<Outcome>,
    ) {
        self.order.retain(|other| *other != guest.transport.key);
        match guest.dial {
            Some(id) => self.dial_failed(id, kind, why, outcomes),
            None => outcomes.push(Outcome::Refused(guest.from, why)),
        }
    }

    pub(super) fn dial_failed(
        &mut self,
        id: u64,
        kind: &'static str,
        why: String,
        outcomes: &mut Vec<Outcome>,
    ) {
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
    pub(super) fn welcomed(
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

    pub(super) fn carry(
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

    pub(super) fn read_trunk(&mut self, key: u64, trunk: Arc<Trunk>, outcomes: &mut Vec<Outcome>) {
        let mut arrivals = Vec::new();
        let end = trunk.receive(&mut arrivals);
        outcomes.push(Outcome::Arrived(Arc::clone(&trunk), arrivals));
        match end {
            Ok(()) => {}
            Err(TransportError::Session(error)) => {
                let told = match &error {
                    SessionError::Bye(_) => None,
                    nonsense => Some(nonsense.to_string()),
                };
                self.end(&trunk, &error.to_string(), told.as_deref(), outcomes);
            }
            Err(_) if trunk.is_leaving() => self.end(&trunk, "was left", None, outcomes),
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

    pub(super) fn stop_dialling(&mut self, trunk: &Arc<Trunk>, outcomes: &mut Vec<Outcome>) {
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
    pub(super) fn end(
        &mut self,
        trunk: &Arc<Trunk>,
        why: &str,
        told: Option<&str>,
        outcomes: &mut Vec<Outcome>,
    ) {
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
