//! Addresses of hosts, and the sockets behind them. Names are resolved before they get here: a resolver can
//! keep a thread waiting for long, and the agent has no thread to spare.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with, bind, connect, getsockname,
    listen, socket_with,
};

/// Connections that the kernel holds for us until they are accepted.
const BACKLOG: i32 = 128;
/// Connections between hosts carry long streams; both ends get buffers to match.
const SOCKET_BYTES: usize = 4 << 20;

/// Where a host listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP; always under TLS.
    Tcp(SocketAddr),
    /// A socket in a directory of the user's own.
    Unix(PathBuf),
}

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Not an address.
    #[error("{0:?} is no address; give tcp://IP:PORT or unix://PATH")]
    Form(String),
    /// The directory of a socket is open to others.
    #[error("{0}: the directory of a socket has to be the user's own, with mode 0700")]
    Directory(String),
    /// Another user's process.
    #[error("the process at the other end runs as user {0}")]
    User(u32),
    /// The kernel refused.
    #[error("{0}")]
    Io(#[from] Errno),
}

impl Address {
    /// Reads `tcp://IP:PORT`, `unix://PATH` or `ipc://PATH`.
    ///
    /// # Errors
    /// Not an address.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError::Form(text.to_owned());
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        match scheme {
            "tcp" => Ok(Self::Tcp(rest.parse().map_err(|_| wrong())?)),
            "unix" | "ipc" if rest.starts_with('/') => Ok(Self::Unix(PathBuf::from(rest))),
            _ => Err(wrong()),
        }
    }

    /// Whether only processes of this machine can reach it.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Whether connections have to be under TLS.
    #[must_use]
    pub fn needs_key(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Listens. Port 0 is replaced by the one that the kernel chose.
    ///
    /// # Errors
    /// In use, not ours, or a directory that others can look into.
    pub fn listen(&self) -> Result<(OwnedFd, Self), AddressError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match self {
            Self::Tcp(address) => {
                let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                let socket = socket_with(family, SocketType::STREAM, flags, None)?;
                sockopt::set_socket_reuseaddr(&socket, true)?;
                bind(&socket, address)?;
                listen(&socket, BACKLOG)?;
                let bound = SocketAddr::try_from(getsockname(&socket)?)?;
                Ok((socket, Self::Tcp(bound)))
            }
            Self::Unix(path) => {
                private_directory(path)?;
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                let name = SocketAddrUnix::new(path)?;
                if let Err(error) = bind(&socket, &name) {
                    if error != Errno::ADDRINUSE || is_served(&name) {
                        return Err(error.into());
                    }
                    // Left behind by a host that was killed.
                    let _ = std::fs::remove_file(path);
                    bind(&socket, &name)?;
                }
                listen(&socket, BACKLOG)?;
                Ok((socket, self.clone()))
            }
        }
    }

    /// Begins to connect; the socket becomes writable when it is decided.
    ///
    /// # Errors
    /// Whatever the kernel says at once.
    pub fn connect(&self) -> Result<OwnedFd, AddressError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match self {
            Self::Tcp(address) => {
                let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                let socket = socket_with(family, SocketType::STREAM, flags, None)?;
                tune(&socket);
                match connect(&socket, address) {
                    Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
                    Err(error) => Err(error.into()),
                }
            }
            Self::Unix(path) => {
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                connect(&socket, &SocketAddrUnix::new(path)?)?;
                check_user(&socket)?;
                Ok(socket)
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(out, "tcp://{address}"),
            Self::Unix(path) => write!(out, "unix://{}", path.display()),
        }
    }
}

/// Accepts a connection, and says where it comes from.
///
/// # Errors
/// `EAGAIN` when there is none; else what the kernel says, or another user's process.
pub fn accept(listener: &OwnedFd, address: &Address) -> Result<(OwnedFd, String), AddressError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, from) = acceptfrom_with(listener, flags)?;
    match address {
        Address::Tcp(_) => {
            tune(&socket);
            let from = from.and_then(|from| SocketAddr::try_from(from).ok());
            Ok((socket, from.map_or_else(|| "tcp".to_owned(), |from| from.to_string())))
        }
        Address::Unix(path) => {
            check_user(&socket)?;
            Ok((socket, path.display().to_string()))
        }
    }
}

fn tune(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BYTES);
    let _ = sockopt::set_socket_recv_buffer_size(socket, SOCKET_BYTES);
}

fn check_user(socket: &OwnedFd) -> Result<(), AddressError> {
    let user = sockopt::socket_peercred(socket)?.uid;
    if user == rustix::process::getuid() { Ok(()) } else { Err(AddressError::User(user.as_raw())) }
}

fn is_served(name: &SocketAddrUnix) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .is_ok_and(|socket| connect(&socket, name) != Err(Errno::CONNREFUSED))
}

/// Makes the directory of a socket if it is not there; it must be ours alone.
fn private_directory(path: &Path) -> Result<(), AddressError> {
    let wrong = || AddressError::Directory(path.display().to_string());
    let directory = path.parent().ok_or_else(wrong)?;
    let made = std::fs::DirBuilder::new().mode(0o700).create(directory);
    if let Err(error) = made
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(AddressError::Io(Errno::from_io_error(&error).unwrap_or(Errno::IO)));
    }
    let found = std::fs::symlink_metadata(directory).map_err(|_| wrong())?;
    let ours = found.uid() == rustix::process::getuid().as_raw();
    if found.is_dir() && ours && found.mode() & 0o077 == 0 { Ok(()) } else { Err(wrong()) }
}
