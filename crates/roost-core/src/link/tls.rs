//! The cluster's key, and connections under TLS.
//!
//! A cluster has a key of its own: the private key and the certificate of an authority that exists for nothing
//! else. Each agent makes a leaf certificate of it at its start, and both sides of a connection verify that the
//! other's comes from the same authority, before either says anything. TLS 1.3 only, without tickets or early
//! data, so that nothing recorded can be used again.

use std::io::{Read, Write};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};

/// The name in every leaf certificate: membership counts, not which host it is.
const MEMBER: &str = "host.roost.internal";
const AUTHORITY: &str = "roost cluster";

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It is not what `roost keygen` writes.
    #[error("this is no cluster key: {0}")]
    Form(String),
}

/// Why a connection under TLS has failed.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The other side is not of this cluster.
    #[error("the other side does not have this cluster's key ({0})")]
    Stranger(rustls::Error),
    /// Something else.
    #[error("TLS failed: {0}")]
    Tls(rustls::Error),
}

fn form(error: impl std::fmt::Display) -> KeyError {
    KeyError::Form(error.to_string())
}

fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, AUTHORITY);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

/// A new cluster key, as text.
///
/// # Errors
/// The system gives no random numbers.
pub fn generate_key() -> Result<String, KeyError> {
    let key = KeyPair::generate().map_err(form)?;
    let certificate = authority().self_signed(&key).map_err(form)?;
    Ok(format!("{}{}", key.serialize_pem(), certificate.pem()))
}

/// What an agent shows, and what it accepts.
pub struct Identity {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Identity {
    /// Makes a leaf certificate of a cluster key.
    ///
    /// # Errors
    /// The text is no cluster key.
    pub fn new(key: &str) -> Result<Self, KeyError> {
        Self::with(key, |_| {})
    }

    fn with(key: &str, change: impl FnOnce(&mut CertificateParams)) -> Result<Self, KeyError> {
        let root = CertificateDer::from_pem_slice(key.as_bytes()).map_err(form)?;
        let secret = KeyPair::from_pem(key).map_err(form)?;
        let mut roots = RootCertStore::empty();
        roots.add(root).map_err(form)?;
        let roots = Arc::new(roots);

        let mut params = CertificateParams::new(vec![MEMBER.to_owned()]).map_err(form)?;
        params.distinguished_name.push(DnType::CommonName, MEMBER);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let own = KeyPair::generate().map_err(form)?;
        let leaf = params.signed_by(&own, &Issuer::new(authority(), secret)).map_err(form)?;
        let chain = vec![leaf.der().clone()];
        let own = || PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.serialize_der()));

        let provider = Arc::new(default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(form)?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(form)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), own())
            .map_err(form)?;
        server.send_tls13_tickets = 0;
        server.max_early_data_size = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(form)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, own())
            .map_err(form)?;
        client.resumption = Resumption::disabled();
        client.enable_early_data = false;
        Ok(Self { server: Arc::new(server), client: Arc::new(client) })
    }
}

/// Turns plain bytes into those on the wire, and back.
pub enum Cipher {
    /// For sockets that the kernel vouches for.
    Plain,
    /// For all others.
    Tls(Box<Connection>),
}

fn explain(error: rustls::Error) -> TlsError {
    use rustls::AlertDescription as Alert;
    use rustls::Error;
    match &error {
        Error::InvalidCertificate(_) | Error::NoCertificatesPresented => TlsError::Stranger(error),
        Error::AlertReceived(
            Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateRequired
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnsupportedCertificate
            | Alert::AccessDenied
            | Alert::DecryptError,
        ) => TlsError::Stranger(error),
        _ => TlsError::Tls(error),
    }
}

impl Cipher {
    /// The side that was dialled.
    ///
    /// # Errors
    /// The identity is unfit.
    pub fn accept(identity: &Identity) -> Result<Self, TlsError> {
        let mut made = ServerConnection::new(Arc::clone(&identity.server)).map_err(explain)?;
        made.set_buffer_limit(None);
        Ok(Self::Tls(Box::new(made.into())))
    }

    /// The side that dials.
    ///
    /// # Errors
    /// The identity is unfit.
    pub fn dial(identity: &Identity) -> Result<Self, TlsError> {
        let name = ServerName::try_from(MEMBER)
            .map_err(|error| TlsError::Tls(rustls::Error::General(error.to_string())))?;
        let mut made = ClientConnection::new(Arc::clone(&identity.client), name).map_err(explain)?;
        made.set_buffer_limit(None);
        Ok(Self::Tls(Box::new(made.into())))
    }

    /// Whether both sides have proved who they are, as far as this one can know.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match self {
            Self::Plain => true,
            Self::Tls(connection) => !connection.is_handshaking(),
        }
    }

    /// Takes bytes off the wire, and appends the plain ones.
    ///
    /// # Errors
    /// They were tampered with, or the other side is a stranger.
    pub fn input(&mut self, mut bytes: &[u8], into: &mut Vec<u8>) -> Result<(), TlsError> {
        let Self::Tls(connection) = self else {
            into.extend_from_slice(bytes);
            return Ok(());
        };
        while !bytes.is_empty() {
            if connection.read_tls(&mut bytes).is_err() {
                return Err(TlsError::Tls(rustls::Error::General("a record is too long".into())));
            }
            let state = connection.process_new_packets().map_err(explain)?;
            let count = state.plaintext_bytes_to_read();
            if count > 0 {
                let start = into.len();
                into.resize(start + count, 0);
                let read = connection.reader().read(&mut into[start..]).unwrap_or(0);
                into.truncate(start + read);
            }
        }
        Ok(())
    }

    /// Appends what is to be written for these plain bytes, and what TLS itself wants to say.
    pub fn output(&mut self, plain: &[u8], into: &mut Vec<u8>) {
        match self {
            Self::Plain => into.extend_from_slice(plain),
            Self::Tls(connection) => {
                // Neither fails: there is no limit, and the target is memory.
                let _ = connection.writer().write_all(plain);
                while connection.wants_write() {
                    if connection.write_tls(into).is_err() {
                        break;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> String {
        generate_key().expect("random numbers")
    }

    /// Lets both sides talk until neither has anything to say; what each got in plain, or why it stopped.
    fn talk(
        dialler: &mut Cipher,
        acceptor: &mut Cipher,
        mut meddle: impl FnMut(&mut Vec<u8>),
    ) -> [Result<Vec<u8>, TlsError>; 2] {
        let mut ends = [Ok(Vec::new()), Ok(Vec::new())];
        let mut said = [false, false];
        for _ in 0..20 {
            let mut there = Vec::new();
            if dialler.is_ready() && !std::mem::replace(&mut said[0], true) {
                dialler.output(b"from the dialler", &mut there);
            }
            dialler.output(&[], &mut there);
            meddle(&mut there);
            let mut plain = Vec::new();
            match acceptor.input(&there, &mut plain) {
                Ok(()) => _ = ends[1].as_mut().map(|all| all.extend(plain)),
                Err(error) => ends[1] = Err(error),
            }
            let mut back = Vec::new();
            if acceptor.is_ready() && !std::mem::replace(&mut said[1], true) {
                acceptor.output(b"from the acceptor", &mut back);
            }
            acceptor.output(&[], &mut back);
            let mut plain = Vec::new();
            match dialler.input(&back, &mut plain) {
                Ok(()) => _ = ends[0].as_mut().map(|all| all.extend(plain)),
                Err(error) => ends[0] = Err(error),
            }
        }
        ends
    }

    fn pair(dialler: &Identity, acceptor: &Identity) -> (Cipher, Cipher) {
        (Cipher::dial(dialler).expect("fit"), Cipher::accept(acceptor).expect("fit"))
    }

    #[test]
    fn hosts_of_one_cluster_understand_each_other() {
        let key = key();
        let (one, other) = (Identity::new(&key).expect("a key"), Identity::new(&key).expect("a key"));
        let (mut dialler, mut acceptor) = pair(&one, &other);

        let [there, back] = talk(&mut dialler, &mut acceptor, |_| {});

        assert_eq!(there.expect("trusted"), b"from the acceptor");
        assert_eq!(back.expect("trusted"), b"from the dialler");
    }

    #[test]
    fn a_host_of_another_cluster_is_a_stranger_and_is_told_nothing() {
        let (one, other) = (Identity::new(&key()).expect("a key"), Identity::new(&key()).expect("a key"));
        let (mut dialler, mut acceptor) = pair(&one, &other);

        let [there, back] = talk(&mut dialler, &mut acceptor, |_| {});

        assert!(matches!(there, Err(TlsError::Stranger(_))), "{there:?}");
        assert!(back.is_err() || back.is_ok_and(|plain| plain.is_empty()));
        assert!(!acceptor.is_ready());
    }

    #[test]
    fn an_acceptor_refuses_a_certificate_that_is_past_its_time() {
        let key = key();
        let old = |params: &mut CertificateParams| params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        let (stale, fresh) = (Identity::with(&key, old).expect("a key"), Identity::new(&key).expect("a key"));
        let (mut dialler, mut acceptor) = pair(&stale, &fresh);

        let [there, back] = talk(&mut dialler, &mut acceptor, |_| {});

        assert!(matches!(back, Err(TlsError::Stranger(_))), "{back:?}");
        assert!(matches!(there, Err(TlsError::Stranger(_))), "{there:?}");
    }

    #[test]
    fn a_byte_that_was_changed_on_the_way_ends_the_connection() {
        let identity = Identity::new(&key()).expect("a key");
        let (mut dialler, mut acceptor) = pair(&identity, &identity);
        let _ = talk(&mut dialler, &mut acceptor, |_| {});
        let (mut wire, mut plain) = (Vec::new(), Vec::new());
        dialler.output(b"a message", &mut wire);
        let last = wire.len() - 1;
        wire[last] ^= 1;

        assert!(acceptor.input(&wire, &mut plain).is_err());
        assert!(plain.is_empty());
    }

    #[test]
    fn what_was_recorded_cannot_be_used_again() {
        let identity = Identity::new(&key()).expect("a key");
        let (mut dialler, mut acceptor) = pair(&identity, &identity);
        let mut recorded = Vec::new();
        let _ = talk(&mut dialler, &mut acceptor, |bytes| recorded.extend_from_slice(bytes));
        let mut again = Cipher::accept(&identity).expect("fit");
        let mut plain = Vec::new();

        let end = again.input(&recorded, &mut plain);

        assert!(end.is_err(), "the handshake has fresh numbers of the acceptor's in it");
        assert!(plain.is_empty() && !again.is_ready());
    }

    #[test]
    fn what_is_no_key_is_refused() {
        assert!(Identity::new("").is_err());
        assert!(Identity::new("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").is_err());
    }
}
