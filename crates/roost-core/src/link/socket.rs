//! The two system calls of a link.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Result;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, send as send_plain, sendmsg,
};

/// Most slices in one write (the kernel's limit is 1,024).
const SLICES: usize = 64;
/// Most descriptors in one read; the sender puts one in a frame.
const DESCRIPTORS: usize = 64;

const FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// Writes the start of `head` and `rest`, with the descriptors on the first byte.
pub fn send(socket: &OwnedFd, head: &[u8], rest: &[&[u8]], fds: &[OwnedFd]) -> Result<usize> {
    if rest.is_empty() && fds.is_empty() {
        return send_plain(socket, head, FLAGS);
    }
    let mut slices = Vec::with_capacity(1 + rest.len().min(SLICES));
    slices.push(IoSlice::new(head));
    slices.extend(rest.iter().take(SLICES).map(|part| IoSlice::new(part)));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    if !borrowed.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&borrowed));
    }
    sendmsg(socket, &slices, &mut control, FLAGS)
}

/// Reads once.
pub fn receive(socket: &OwnedFd, buffer: &mut [u8], fds: &mut VecDeque<OwnedFd>) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(buffer)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(socket, &mut slices, &mut control, flags)?;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    Ok(message.bytes)
}
